package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// cutTime is how long a path is cut.
const cutTime = 3 * time.Second

// prepareProxies makes the way to each node's tcp one that can be cut.
func prepareProxies(s *stage) error {
	s.proxies = map[string]*proxy{}
	for _, name := range []string{senderName, receiverName} {
		p, err := newProxy()
		if err != nil {
			return err
		}
		s.proxies[name] = p
	}
	return nil
}

func setupProxies(s *stage, node string, x *lab.Setup) {
	settings, _ := json.Marshal(map[string]string{"advertise": s.proxies[node].address()})
	x.Settings = map[string]json.RawMessage{first: settings}
	// A path that carries nothing is paused. The default is longer than a row.
	x.PauseSecs = 1
}

// towards are the lanes towards a node: in through its own proxy, and out of
// the other node's, whichever of them dialed.
func (s *stage) towards(node string) []*lane {
	other := senderName
	if node == senderName {
		other = receiverName
	}
	return []*lane{s.proxies[node].in, s.proxies[other].out}
}

func cutBoth(ctx context.Context, s *stage) error {
	return s.cut(ctx, 300, "both ways", append(s.towards(receiverName), s.towards(senderName)...))
}

func cutHalf(ctx context.Context, s *stage) error {
	if err := s.cut(ctx, 150, "towards the receiver only", s.towards(receiverName)); err != nil {
		return err
	}
	return s.cut(ctx, 600, "towards the sender only", s.towards(senderName))
}

func passed(lanes []*lane) (n int64) {
	for _, l := range lanes {
		n += l.passed.Load()
	}
	return n
}

// cut cuts lanes for a while once a part of the stream was sent.
func (s *stage) cut(ctx context.Context, part int, what string, lanes []*lane) error {
	if err := s.awaitSent(ctx, s.o.Count*part/1000); err != nil {
		return err
	}
	last := time.Duration(0) // healed, the time before
	if n := len(s.faults); n > 0 {
		last = s.faults[n-1].when + cutTime
	}
	if err := s.flowing(ctx, last, first); err != nil {
		return err
	}
	carried := passed(lanes)
	at := lab.Now()
	for _, l := range lanes {
		l.cut()
	}
	f := s.record(at, "tcp path cut %s", what)
	s.require(carried > 0, "nothing had passed the tcp path %s", what)
	sleep(ctx, 50*time.Millisecond) // what was being written
	before := passed(lanes)
	sleep(ctx, cutTime-50*time.Millisecond)
	after, held := passed(lanes), int64(0)
	for _, l := range lanes {
		held += l.held.Load()
	}
	healed := lab.Now()
	for _, l := range lanes {
		l.heal()
	}
	s.require(before == after, "%d bytes passed the tcp path while it was cut", after-before)
	s.require(held > 0, "nothing wanted to pass the tcp path while it was cut")
	short, cancel := context.WithTimeout(ctx, cutTime)
	defer cancel()
	for passed(lanes) == after && short.Err() == nil {
		sleep(short, pollEvery)
	}
	f.Proof = fmt.Sprintf("nothing passed for %s, and what waited did %s after it was healed", lap(healed-at), lap(lab.Now()-healed))
	s.require(passed(lanes) > after, "nothing passed the tcp path after it was healed")
	err := s.flowing(short, healed, first)
	s.require(err == nil, "%s had carried nothing %s after it was healed", first, lap(cutTime))
	s.note("%s carries again %s after it was healed", first, lap(lab.Now()-healed))
	return ctx.Err()
}

func judgeCut(s *stage, l *ledger, r *Result) {
	s.require(r.By[first] > 0, "nothing went over %s", first)
	s.require(r.By[second] > 0, "nothing went over %s while %s was cut", second, first)
	for _, f := range s.faults {
		a, ok := l.arrivedSince(f.when+50*time.Millisecond, func(arrival) bool { return true })
		s.require(ok && a.At < f.when+cutTime, "nothing arrived while %s", f.What)
	}
}
