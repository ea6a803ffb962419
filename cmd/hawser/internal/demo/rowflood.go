package demo

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

const (
	// floodFrames is what the queue of the flooded reader holds.
	floodFrames = 64
	// floodPings are measured in each half of a round, and floodRounds are made
	// at most. If the flood makes no difference each round shows that as likely
	// as not, however busy the machine is, and all of them fail to once in a
	// thousand runs at worst; what a flood holds up it holds up in each.
	floodPings  = 400
	floodRounds = 10
	floodFactor = 2
)

func setupFlood(_ *stage, node string, x *lab.Setup) {
	if node == receiverName {
		x.ReceiveFrames = floodFrames
	}
}

// beginFlood starts a node that the receiver sends to, beside the flood.
func beginFlood(ctx context.Context, s *stage) error {
	n, err := s.open(ctx, bystander, anyPort, -1)
	if err != nil {
		return err
	}
	s.others = []*peer{n}
	if err := n.Call(ctx, "receive", receiveArgs{}, nil); err != nil {
		return err
	}
	if _, err := s.floodPing(ctx); err != nil { // connects, and warms up
		return err
	}
	return s.send(ctx)
}

// latency is how long notifications took.
type latency struct{ median, most time.Duration }

// floodPing measures what the receiver sends to the third node. The answers come
// in over the same device as the flood.
func (s *stage) floodPing(ctx context.Context) (p latency, err error) {
	var took []time.Duration
	err = s.receiver.Call(ctx, "ping", pingArgs{Peer: s.others[0].opened.Address, Count: floodPings, EveryMS: 2}, &took)
	if err == nil && len(took) != floodPings {
		err = fmt.Errorf("%d pings of %d", len(took), floodPings)
	}
	if err != nil {
		return p, err
	}
	slices.Sort(took)
	return latency{took[len(took)/2], took[len(took)*99/100]}, nil
}

func (p latency) String() string {
	return fmt.Sprintf("%.2f ms, 99%% within %.2f ms", milliseconds(p.median), milliseconds(p.most))
}

// flood measures in rounds: alone, and while a peer has filled whatever the
// receiver and its device have for that peer. The halves of a round are a moment
// apart, so that whatever else the machine does slows both.
func flood(ctx context.Context, s *stage) error {
	if err := s.flowing(ctx, 0, rdma); err != nil {
		return err
	}
	f := s.record(lab.Now(), "the receiver's application stops reading, again and again")
	for round := 1; ; round++ {
		alone, flooded, err := s.floodRound(ctx, f)
		if err != nil {
			return err
		}
		holds := flooded.median <= floodFactor*alone.median && flooded.most <= floodFactor*alone.most
		if holds || round == floodRounds {
			s.require(holds, "in none of %d rounds did it take at most %d times as long", round, floodFactor)
			s.note("the receiver to a third node, round %d: alone %v; flooded %v", round, alone, flooded)
			return s.pace(ctx, s.fullPace(), 0)
		}
	}
}

// floodRound is one round. It ends with nothing on its way.
func (s *stage) floodRound(ctx context.Context, f *Fault) (alone, flooded latency, err error) {
	if err := s.pace(ctx, 1, 0); err != nil {
		return alone, flooded, err
	}
	if err := s.drained(ctx); err != nil {
		return alone, flooded, err
	}
	if alone, err = s.floodPing(ctx); err != nil {
		return alone, flooded, err
	}
	if err := s.receiver.Call(ctx, "reading", false, nil); err != nil {
		return alone, flooded, err
	}
	if err := s.pace(ctx, 1, max(s.o.Count/(floodRounds+2), 2*floodFrames)); err != nil {
		return alone, flooded, err
	}
	if err := s.filled(ctx); err != nil {
		return alone, flooded, err
	}
	_, before := s.ledger.counts()
	if flooded, err = s.floodPing(ctx); err != nil {
		return alone, flooded, err
	}
	_, after := s.ledger.counts()
	st, err := s.sender.stats(ctx)
	if err != nil {
		return alone, flooded, err
	}
	s.require(before == after, "%d arrived meanwhile", after-before)
	s.require(st.Pending > 0, "nothing was pending at the sender: there was no flood")
	f.Proof = fmt.Sprintf("nothing arrived, %d were queued and %d pending at the sender", floodFrames, st.Pending)
	return alone, flooded, s.receiver.Call(ctx, "reading", true, nil)
}

// drained waits until all that was sent has ended.
func (s *stage) drained(ctx context.Context) error {
	return s.ledger.await(ctx, "all that was sent to end", func(l *ledger) bool { return len(l.ended) == len(l.sent) })
}

// filled waits until the receiver's queue is full and nothing more arrives.
func (s *stage) filled(ctx context.Context) error {
	return waitFor(ctx, backTimeout*s.o.slow(), "the receiver's queue to be full", func() (bool, error) {
		st, err := s.receiver.stats(ctx)
		return st.Queued >= floodFrames, err
	})
}
