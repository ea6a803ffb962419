//go:build linux

package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

const payloadLimit = 16 << 20 // notification.max_payload_bytes

// oversize is a notification whose name and payload have so many bytes.
func oversize(name string, size int) engine.Notification {
	payload := make([]byte, size-len(name))
	_, _ = rand.NewChaCha8([32]byte{byte(len(name)), byte(size >> 20)}).Read(payload)
	return engine.Notification{Name: name, Payload: payload}
}

// Scenario 5, with plugins: sizes around each limit among small ones, each
// once and intact; one byte over the last limit is TooLarge and says so. What
// the large ones took is not kept.
func TestScenario5Oversize(t *testing.T) {
	t.Run("beside tcp", func(t *testing.T) { oversizeAmongSmall(t, nil) })
	t.Run("rpcfallback alone", func(t *testing.T) {
		oversizeAmongSmall(t, []engine.TransportConfig{{Name: "rpcfallback"}})
	})
}

func oversizeAmongSmall(t *testing.T, transports []engine.TransportConfig) {
	const tcpLimit = 65_484
	sizes := []int{tcpLimit - 1, tcpLimit, tcpLimit + 1, 1 << 20, payloadLimit - 1, payloadLimit}
	const rounds, warmUp = 6, 2
	// The test reads what the receiver gets itself.
	ctx := briefly(t)
	configured := func(name string) engine.Config {
		cfg := config(name)
		cfg.Transports = transports
		return cfg
	}
	receiver, err := engine.Open(ctx, configured("receiver"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := receiver.Close(briefly(t)); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	sender := open(t, configured("sender"))
	to := receiver.Self().Address
	got := make(chan *engine.Received)
	go func() {
		defer close(got)
		for {
			r, err := receiver.Receive(context.Background())
			if err != nil {
				return
			}
			got <- r
		}
	}()
	t.Cleanup(func() {
		go func() {
			for range got {
			}
		}()
	})

	// Of the plugins; what this process holds depends on the race detector.
	memory := func() (sum int) {
		for _, pid := range append(pluginPIDs(sender.Engine), pluginPIDs(receiver)...) {
			sum += resident(pid)
		}
		return sum
	}
	var warm int
	for round := range rounds {
		ctx := briefly(t)
		want := map[string][]byte{}
		large := map[string]int{}
		var all []*engine.Delivery
		notify := func(n engine.Notification) {
			t.Helper()
			d, err := sender.Notify(ctx, to, n)
			if err != nil {
				t.Fatal(err)
			}
			want[n.Name], all = n.Payload, append(all, d)
		}
		for i, size := range sizes {
			n := oversize(fmt.Sprintf("large/%d/%d", round, i), size)
			large[n.Name] = size
			notify(n)
			for k := range 200 {
				notify(message(fmt.Sprintf("small/%d/%d", round, i), k))
			}
		}
		seen := map[string]string{}
		for range want {
			select {
			case r := <-got:
				if _, twice := seen[r.Name]; twice || !bytes.Equal(r.Payload, want[r.Name]) {
					t.Fatalf("%s: twice %v, %d bytes", r.Name, twice, len(r.Payload))
				}
				seen[r.Name] = r.Transport
			case <-ctx.Done():
				t.Fatalf("%d of %d arrived", len(seen), len(want))
			}
		}
		for _, d := range all {
			if err := d.Wait(ctx); err != nil {
				t.Fatal(err)
			}
		}
		for name, size := range large {
			want := "rpcfallback"
			if size <= tcpLimit && transports == nil {
				want = "tcp"
			}
			if seen[name] != want {
				t.Errorf("%d bytes went over %s", size, seen[name])
			}
		}
		if round < warmUp {
			warm = memory()
		}
	}
	select {
	case r := <-got:
		t.Errorf("%s arrived again, or from nowhere", r.Name)
	case <-time.After(100 * time.Millisecond):
	}

	_, err = sender.Notify(briefly(t), to, oversize("over", payloadLimit+1))
	if !errors.Is(err, engine.TooLarge) || !strings.Contains(err.Error(), fmt.Sprint(payloadLimit)) {
		t.Errorf("one byte more: %v", err)
	}
	if now := memory(); now > warm+96<<20 {
		t.Errorf("the plugins hold %d MiB after %d rounds, %d after %d", now>>20, rounds, warm>>20, warmUp)
	} else {
		t.Logf("the plugins hold %d MiB after %d rounds, %d after %d", now>>20, rounds, warm>>20, warmUp)
	}
}
