package control

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestNetworkSilence(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fault  func(n *Network, on bool)
		served bool
	}{
		{"request", func(n *Network, on bool) { n.Silence("a", "b", on) }, false},
		{"reply", func(n *Network, on bool) { n.Silence("b", "a", on) }, true},
		{"frozen", func(n *Network, on bool) { n.Freeze("b", on) }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := NewNetwork()
				served := 0
				c, _ := pair(t, memoryWorld{n}, &stub{probe: func(context.Context, ProbeRequest) (ProbeReply, error) {
					served++
					return ProbeReply{Node: node("b", 2)}, nil
				}})
				tt.fault(n, true)
				began := time.Now()
				_, err := c.Probe(context.Background(), ProbeRequest{From: incarnation(1)})
				if !Silent(err) || Answered(err) {
					t.Errorf("got %v", err)
				}
				if took := time.Since(began); took != 2*time.Second {
					t.Errorf("took %v, want the probe's default deadline", took)
				}
				if (served == 1) != tt.served {
					t.Errorf("served %d", served)
				}
				if f := n.Faults(); f.Held != 1 {
					t.Errorf("the fault fired %d times", f.Held)
				}

				// What was held goes on when the fault is cleared.
				time.AfterFunc(time.Second, func() { tt.fault(n, false) })
				began = time.Now()
				if _, err := c.Probe(context.Background(), ProbeRequest{From: incarnation(1)}); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took != time.Second {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestNetworkDelayAndRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := NewNetwork()
		c, _ := pair(t, memoryWorld{n}, &stub{})
		n.Delay("a", "b", 300*time.Millisecond)
		n.Delay("b", "a", 400*time.Millisecond)
		began := time.Now()
		if _, err := c.Probe(context.Background(), ProbeRequest{From: incarnation(1)}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 700*time.Millisecond {
			t.Errorf("took %v", took)
		}
		n.Refuse("b", true)
		if _, err := c.Probe(context.Background(), ProbeRequest{From: incarnation(1)}); !Gone(err) {
			t.Errorf("got %v", err)
		}
		n.Refuse("b", false)
		if _, err := c.Probe(context.Background(), ProbeRequest{From: incarnation(1)}); err != nil {
			t.Error(err)
		}
		if f := n.Faults(); f.Delayed != 6-1 || f.Refused != 1 {
			t.Errorf("fired %+v", f)
		}
	})
}
