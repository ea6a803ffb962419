package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// waitingWanted is how many completions wait when the endpoints end.
const waitingWanted = 256

// setupRetire has the receiver speak protocol 1: what its device has
// acknowledged has ended at the sender, and nobody sends it again. Its device
// has buffers for all that two peers may have on their way.
func setupRetire(s *stage, node string, x *lab.Setup) {
	receiverAt(1)(s, node, x)
	x.Settings = map[string]json.RawMessage{rdma: json.RawMessage(`{"receive_depth": 2048}`)}
}

// beginRetire lets two nodes send a half each: one endpoint is sure to take
// more than half of what is wanted, and only at times all of it.
func beginRetire(ctx context.Context, s *stage) error {
	n, err := s.open(ctx, bystander, anyPort, 0)
	if err != nil {
		return err
	}
	s.others, s.held = []*peer{n}, 2
	if err := s.sender.Call(ctx, "send", s.sending(0, s.o.Count/2, true), nil); err != nil {
		return err
	}
	return n.Call(ctx, "send", s.sending(s.o.Count/2, s.o.Count, true), nil)
}

// paceBoth changes the pace of both senders, and asks each for some at once.
func (s *stage) paceBoth(ctx context.Context, pace, burst int) error {
	for _, n := range []*peer{s.sender, s.others[0]} {
		if err := n.Call(ctx, "pace", paceArgs{pace, burst}, nil); err != nil {
			return err
		}
	}
	return nil
}

// retire ends the receiver's endpoints by the events of their ports, while the
// device's poller is held: what waits reaches the application because the
// endpoints see to it as they end, or never.
func retire(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count*300/1000); err != nil {
		return err
	}
	err := s.ledger.await(ctx, "both senders' to arrive over rdma", func(l *ledger) bool {
		_, a := l.arrivedSince(0, func(a arrival) bool { return a.Transport == rdma && index(a.Name) < s.o.Count/2 })
		_, b := l.arrivedSince(0, func(a arrival) bool { return a.Transport == rdma && index(a.Name) >= s.o.Count/2 })
		return a && b
	})
	if err != nil {
		return err
	}
	if err := s.paceBoth(ctx, 1, 0); err != nil {
		return err
	}
	if _, err := s.verbs(ctx, receiverName, "hold"); err != nil {
		return err
	}
	waiting, err := s.keepBurst(ctx)
	if err != nil {
		return err
	}
	f := s.record(lab.Now(), "receiver's rails down, %d completions waiting", len(waiting))
	defer s.heal(receiverName)
	if err := s.rails(ctx, receiverName, false); err != nil {
		return err
	}
	err = waitFor(ctx, backTimeout*s.o.slow(), "the endpoints to end", func() (bool, error) {
		connected, err := s.verbs(ctx, receiverName, "connected")
		return connected == "0", err
	})
	if err != nil {
		return err
	}
	ended := lab.Now()
	arrived, err := s.arrivals(ctx, waiting)
	if err != nil {
		return err
	}
	f.Proof = fmt.Sprintf("%d arrived over rdma, %d dropped, within %s of the endpoints' end; none was sent again",
		arrived, len(waiting)-arrived, lap(lab.Now()-ended))
	if _, err := s.verbs(ctx, receiverName, "release"); err != nil {
		return err
	}
	if err := s.rails(ctx, receiverName, true); err != nil {
		return err
	}
	if err := s.paceBoth(ctx, s.fullPace(), 0); err != nil {
		return err
	}
	if err := s.flowing(ctx, lab.Now(), rdma); err != nil {
		return err
	}
	return s.endHeld(ctx)
}

// keepBurst sends a burst, and returns, by name, what the receiver's device has
// acknowledged and its application has not got.
func (s *stage) keepBurst(ctx context.Context) (waiting map[string]bool, err error) {
	if err := s.paceBoth(ctx, 1, burstSize); err != nil {
		return nil, err
	}
	err = s.ledger.await(ctx, "a burst to wait", func(l *ledger) bool {
		waiting = map[string]bool{}
		for _, e := range l.ended {
			if e.Taken {
				waiting[name(e.Index, s.o.Count)] = true
			}
		}
		for _, a := range l.arrived {
			delete(waiting, a.Name)
		}
		return len(waiting) >= waitingWanted
	})
	return waiting, err
}

// arrivals waits for those to arrive over rdma, and returns how many did. That
// none of them was sent twice is known already: they had ended.
func (s *stage) arrivals(ctx context.Context, waiting map[string]bool) (n int, err error) {
	late, cancel := context.WithTimeout(ctx, retireTimeout*s.o.slow())
	defer cancel()
	dropped := s.ledger.await(late, "what waited to arrive", func(l *ledger) bool {
		n = 0
		for _, a := range l.arrived {
			if waiting[a.Name] && a.Transport == rdma {
				n++
			}
		}
		return n == len(waiting)
	})
	s.require(dropped == nil, "%d of the %d that waited were dropped: %v", len(waiting)-n, len(waiting), dropped)
	for _, e := range s.ledger.copy().ended {
		s.require(!waiting[name(e.Index, s.o.Count)] || e.Copies == 1, "%s was sent %d times", name(e.Index, s.o.Count), e.Copies)
	}
	return n, ctx.Err()
}

// retireTimeout is how long what waited may take.
const retireTimeout = 5 * time.Second
