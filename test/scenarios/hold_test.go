//go:build linux

package scenarios

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

const (
	holdCount = 1500    // notifications that nobody reads at first
	holdSize  = 4 << 10 // of each: far more in all than windows and buffers take
	// holdLatency is what half of another peer's may take meanwhile, far above
	// what they do. When one peer's full queue stopped the whole link, each took
	// a second; a machine that is busy holds some up.
	holdLatency = 500 * time.Millisecond
)

// Two senders at protocol 0, and at 1, over one plugin of the receiver's. The
// queue of one is full for seconds: the other's do not wait, and when a reader
// comes everything has come once.
func TestAFullQueueHoldsItsSenderAlone(t *testing.T) {
	for proto := range 2 {
		t.Run(fmt.Sprint("protocol ", proto), func(t *testing.T) {
			open := func(name string, opts ...engine.Option) *engine.Engine {
				e, err := engine.Open(t.Context(), engine.Config{
					Node:         engine.NodeConfig{Name: name},
					Notification: engine.NotificationConfig{Proto: &proto, DeadlineMS: 120000},
					RPC:          engine.RPCConfig{NotifyTimeoutMS: 120000},
					Plugins:      engine.PluginsConfig{Dir: bin, RunDir: runs},
					Transports:   tcpFirst(),
				}, opts...)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					_ = e.Close(ctx)
				})
				return e
			}
			slow := engine.NewQueue("slow/", engine.QueueBounds{Frames: 16})
			receiver := open("receiver", engine.WithQueue(slow))
			flooder, other := open("flooder"), open("other")
			to := receiver.Self().Address
			var sent []*engine.Delivery
			for i := range holdCount {
				d, err := flooder.Notify(t.Context(), to, engine.Notification{Name: fmt.Sprint("slow/", i), Payload: make([]byte, holdSize)})
				if err != nil {
					t.Fatal(err)
				}
				sent = append(sent, d)
			}
			until(t, "the full queue", func() bool { return slow.Len() == 16 })
			var took []time.Duration
			for begin, n := time.Now(), 0; len(took) == 0 || time.Since(begin) < 3*time.Second; n++ {
				start := time.Now()
				if _, err := other.Notify(t.Context(), to, engine.Notification{Name: fmt.Sprint(n)}); err != nil {
					t.Fatal(err)
				}
				r, err := receiver.Receive(briefly(t))
				if err != nil || r.Name != fmt.Sprint(n) {
					t.Fatalf("%v, %v, want %d", r, err, n)
				}
				if n > 0 { // the first one connects
					took = append(took, time.Since(start))
				}
				time.Sleep(5 * time.Millisecond)
			}
			slices.Sort(took)
			median := took[len(took)/2]
			t.Logf("%d while another endpoint was held, median %v, slowest %v", len(took), median, took[len(took)-1])
			if median > holdLatency {
				t.Errorf("half of the notifications took %v while another peer's endpoint was held", median)
			}
			if slow.Len() != 16 {
				t.Errorf("%d in the full queue", slow.Len())
			}
			seen := map[string]bool{}
			for len(seen) < holdCount {
				r, err := slow.Receive(briefly(t))
				if err != nil {
					t.Fatalf("after %d of %d: %v", len(seen), holdCount, err)
				}
				if seen[r.Name] {
					t.Errorf("%s came twice", r.Name)
				}
				seen[r.Name] = true
			}
			for _, d := range sent {
				if err := d.Wait(briefly(t)); err != nil || d.Ended() != engine.HandedOver {
					t.Fatalf("%v, %v", d.Ended(), err)
				}
			}
			s := receiver.Stats()
			if resent := flooder.Stats().Resent; slow.Len() != 0 || s.DroppedFull != 0 || s.Duplicates != 0 || resent != 0 {
				t.Errorf("%d too many, %d dropped, %d doubled, %d sent again", slow.Len(), s.DroppedFull, s.Duplicates, resent)
			}
		})
	}
}
