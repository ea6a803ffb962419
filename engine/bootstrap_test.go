package engine

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// An attempt that the peer has seen a later one than is nobody's failure: the
// next one, newer, follows at once and needs no notification to ask for it.
func TestAnOutdatedGenerationIsTriedAgainAtOnce(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		time.Sleep(time.Minute) // what is long connected is connected anew at once
		there, q := pathOf(t, b, "fast")
		there.mu.Lock()
		q.generation = 40
		there.mu.Unlock()
		if w.fast.End("", "", "") == 0 {
			t.Fatal("no endpoint ended")
		}
		synctest.Wait()
		w.within(w.notify(a, "b:1", "x"), 10*time.Millisecond)
		synctest.Wait()
		here, p := pathOf(t, a, "fast")
		here.mu.Lock()
		defer here.mu.Unlock()
		if !p.up() || p.generation != 41 || p.failures != 0 {
			t.Errorf("up %v, generation %d, %d failures", p.up(), p.generation, p.failures)
		}
	})
}

// braggart answers every bootstrap as if it had seen a later one.
type braggart struct {
	control.Carrier
	asked *atomic.Int64
}

type braggartHandler struct {
	control.Handler
	asked *atomic.Int64
}

func (l braggart) Listen(h control.Handler) (string, error) {
	return l.Carrier.Listen(braggartHandler{h, l.asked})
}

func (h braggartHandler) Bootstrap(_ context.Context, q control.BootstrapRequest) (control.BootstrapReply, error) {
	h.asked.Add(1)
	return control.BootstrapReply{Newest: q.Generation + 5}, nil
}

// A peer that says so for ever is asked at the pace of any failure.
func TestAPeerThatAlwaysKnowsALaterGeneration(t *testing.T) {
	run(t, func(w *world) {
		var asked atomic.Int64
		a := w.open("a:1")
		cfg := w.configs["b:1"]
		cfg.Node.Name = "b:1"
		no := false
		cfg.Notification.RPCFallback = &no
		cfg.Transports = []TransportConfig{{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("b:1") }}}
		b, err := Open(context.Background(), cfg, withCarrier(braggart{w.network.Carrier("b:1"), &asked}))
		if err != nil {
			t.Fatal(err)
		}
		defer w.shut(a, b)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		d, err := a.Notify(ctx, "b:1", Notification{Name: "x"})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.wait(d); !errors.Is(err, NotSent) {
			t.Errorf("ended with %v", err)
		}
		// 0.1, 0.2, 0.4 ... 5 s apart, of four attempts each.
		if n := asked.Load(); n < 8 || n > 4*20 {
			t.Errorf("asked %d times in 10 s", n)
		}
	})
}

// What two names of one node hold goes into one outbox when that is found out.
// Nothing of it is lost, and until that outbox is within its bound again it takes
// nothing new.
func TestAnOutboxOverItsBoundTakesNothingNew(t *testing.T) {
	run(t, func(w *world) {
		const bound = 16 << 10
		w.configs["a:1"] = Config{
			Notification: NotificationConfig{MaxPayloadBytes: 4 << 10},
			Outbox:       OutboxConfig{Bytes: bound, TotalBytes: 4 * bound},
			Registry:     RegistryConfig{Type: "static", Static: map[string]string{"one": "b:1", "other": "c:1"}},
		}
		w.network.Alias("c:1", "b:1")
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.network.Silence("a:1", "b:1", true)
		var want []string
		fill := func(peer string) {
			for i := 0; ; i++ {
				name := fmt.Sprintf("%s-%d", peer, i)
				n := Notification{Name: name, Payload: []byte("payload of " + name)}
				if _, err := a.Notify(context.Background(), peer, n); errors.Is(err, Backpressure) {
					return
				} else if err != nil {
					t.Fatal(err)
				}
				want = append(want, name)
			}
		}
		fill("one")
		fill("other")
		w.fast.CutBoth("a:1", "b:1", "")
		w.slow.CutBoth("a:1", "b:1", "")
		w.network.Silence("a:1", "b:1", false)
		time.Sleep(2 * time.Second)
		held := 0
		for _, p := range a.Peers() {
			held = max(held, p.OutboxBytes)
		}
		if held <= bound || held > 2*bound {
			t.Fatalf("one outbox holds %d bytes", held)
		}
		for _, peer := range []string{"one", "other"} {
			if _, err := a.Notify(context.Background(), peer, Notification{Name: "more"}); !errors.Is(err, Backpressure) {
				t.Errorf("an outbox over its bound took one more: %v", err)
			}
		}
		w.fast.HealBoth("a:1", "b:1", "")
		w.slow.HealBoth("a:1", "b:1", "")
		w.expect(b, want...)
		w.within(w.notify(a, "one", "again"), time.Second)
		w.expect(b, "again")
	})
}
