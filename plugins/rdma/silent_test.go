package main

import (
	"os"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
)

// soft leaves a host one device, and makes it behave as Soft-RoCE's: a queue pair
// that has failed is silent, and whoever sends to it sends again for ever.
func soft(o *simverbs.Options) {
	o.Devices = o.Devices[:1]
	d := &o.Devices[0]
	d.KeepsCompletions, d.NoLastWQE, d.NoRetryLimit = true, true, true
}

// gapAtMost is well below the stall timeout of ten seconds, by which alone the
// sender would notice.
const gapAtMost = 5 * time.Second

// The receiver's queue pair fails in the middle of a stream, and nothing tells
// the sender's device. The receiver looks, its engine tells the sender's, and the
// stream goes on over a new one.
func TestAReceiversQueuePairFailsInSilence(t *testing.T) {
	for name, fail := range map[string]func(*simverbs.Controller, simverbs.QPName) error{
		"error": (*simverbs.Controller).ToError, "reset": (*simverbs.Controller).ToReset,
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "rdma") // t.TempDir is too long for sockets
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			a, b := openOn(t, dir, 1, soft), openOn(t, dir, 2, soft)
			s := &stream{t: t, from: a, to: b}
			rail0 := "10.77.0.1-10.77.0.2"
			s.until(rail0)
			control := simverbs.Control(dir)
			for range 3 {
				s.send(100)
				if err := fail(control, simverbs.QPName{Host: "h2"}); err != nil {
					t.Fatal(err)
				}
				began, connects := time.Now(), a.Stats().Connects+a.Stats().Accepts
				s.one()
				gap := time.Since(began)
				t.Logf("the stream went on after %s", gap.Round(time.Millisecond))
				if gap > gapAtMost {
					t.Errorf("the stream stood for %s", gap)
				}
				if n := a.Stats().Connects + a.Stats().Accepts - connects; n == 0 {
					t.Error("it went on over what had failed")
				}
			}
			s.check()
		})
	}
}
