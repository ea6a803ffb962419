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
	floodPings  = 400
	// floodSlack is what the machine may add to the slowest of a hundred.
	floodSlack = 10 * time.Millisecond
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
	if err := n.Call(ctx, "receive", sizes{}, nil); err != nil {
		return err
	}
	return nil
}

// flood measures what the receiver sends to a third node: alone, and while a
// peer has filled whatever the receiver and its device have for that peer. The
// answers come in over the same device.
func flood(ctx context.Context, s *stage) error {
	ping := func() (median, most time.Duration, err error) {
		var took []time.Duration
		err = s.receiver.Call(ctx, "ping", pingArgs{Peer: s.others[0].opened.Address, Count: floodPings, EveryMS: 5}, &took)
		if err == nil && len(took) != floodPings {
			err = fmt.Errorf("%d pings of %d", len(took), floodPings)
		}
		if err != nil {
			return 0, 0, err
		}
		slices.Sort(took)
		return took[len(took)/2], took[len(took)*99/100], nil
	}
	if _, _, err := ping(); err != nil { // connects, and warms up
		return err
	}
	median, alone, err := ping()
	if err != nil {
		return err
	}
	if err := s.send(ctx); err != nil {
		return err
	}
	if err := s.flowing(ctx, 0, rdma); err != nil {
		return err
	}
	if err := s.receiver.Call(ctx, "reading", false, nil); err != nil {
		return err
	}
	f := s.record(lab.Now(), "the receiver's application stops reading")
	if err := s.filled(ctx); err != nil {
		return err
	}
	_, before := s.ledger.counts()
	median2, flooded, err := ping()
	if err != nil {
		return err
	}
	_, after := s.ledger.counts()
	st, err := s.sender.stats(ctx)
	if err != nil {
		return err
	}
	s.require(before == after, "%d arrived meanwhile", after-before)
	f.Proof = fmt.Sprintf("nothing arrived, %d were queued and %d pending at the sender", floodFrames, st.Pending)
	s.note("the receiver to a third node: median %d us alone, %d us flooded; 99%% within %.2f ms alone, %.2f ms flooded",
		median.Microseconds(), median2.Microseconds(), milliseconds(alone), milliseconds(flooded))
	s.require(flooded <= 2*alone+floodSlack, "99%% took up to %s, alone %s", lap(flooded), lap(alone))
	return s.receiver.Call(ctx, "reading", true, nil)
}

// filled waits until the receiver's queue is full and nothing more arrives.
func (s *stage) filled(ctx context.Context) error {
	return waitFor(ctx, backTimeout*s.o.slow(), "the receiver's queue to be full", func() (bool, error) {
		st, err := s.receiver.stats(ctx)
		return st.Queued >= floodFrames, err
	})
}
