package demo

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

const (
	// callTimeout is how long a call to a peer may take here, and
	// defaultCallTimeout what rpc's keys have if nothing is said.
	callTimeout        = 2 * time.Second
	defaultCallTimeout = 30 * time.Second
	// callSlack is how much longer than its timeout a call may take, since the
	// machine is busy.
	callSlack = 500 * time.Millisecond
	// markedLimit is how long a call to a marked peer may take.
	markedLimit = 10 * time.Millisecond
	// manyCallers call a frozen peer at once.
	manyCallers = 16

	frozenTime = 5 * time.Second
	// usableLimit is when a peer that was resumed must be of use.
	usableLimit = 1500 * time.Millisecond
)

// callTimeout is how long a call to a peer may take in this run.
func (o Options) callTimeout() time.Duration {
	if o.DefaultTimeouts {
		return defaultCallTimeout
	}
	return callTimeout
}

func setupFrozen(s *stage, _ string, x *lab.Setup) {
	if s.o.DefaultTimeouts {
		x.DeadlineMS = 0 // the default, which is longer than these
	} else {
		x.CallTimeoutMS = int(callTimeout.Milliseconds())
	}
}

// frozen is a node that is stopped by a signal.
type frozen struct {
	n         *peer
	processes []lab.Handle // the host first
	plugins   int
}

// freeze stops a node's host, and its plugins too if withPlugins.
func (n *peer) freeze(ctx context.Context, withPlugins bool) (*frozen, error) {
	f := &frozen{n: n}
	h, err := n.host.Hold(ctx, n.PID(), 0)
	if err != nil {
		return f, err
	}
	f.processes = append(f.processes, h)
	for _, name := range n.transports {
		if !withPlugins {
			break
		}
		t, err := n.aim(ctx, name)
		if err != nil {
			return f, err
		}
		f.processes = append(f.processes, t.Handle)
		f.plugins++
	}
	if err := f.signal(syscall.SIGSTOP); err != nil {
		return f, err
	}
	ctx, cancel := context.WithTimeout(ctx, goneTimeout*n.slow)
	defer cancel()
	for _, p := range f.processes {
		if !p.WaitStopped(ctx) {
			return f, fmt.Errorf("process %d of the %s never stopped", p.PID(), n.name)
		}
	}
	return f, nil
}

func (f *frozen) signal(s syscall.Signal) error {
	for _, p := range f.processes {
		if err := p.Signal(s); err != nil {
			return err
		}
	}
	return nil
}

// thaw lets it go on, and lets go of it.
func (f *frozen) thaw() error {
	err := f.signal(syscall.SIGCONT)
	for _, p := range f.processes {
		p.Close()
	}
	f.processes = nil
	return err
}

func (f *frozen) what() string {
	if f.plugins == 0 {
		return "host alone"
	}
	return fmt.Sprintf("host with its %d plugins", f.plugins)
}

// victim is a peer that is frozen before anybody has called it.
type victim struct {
	*frozen
	callers       int
	first, second []tried
}

// freezePeers freezes nodes that nobody has called, and begins the stream.
func freezePeers(ctx context.Context, s *stage) error {
	kinds := [...]struct {
		withPlugins bool
		callers     int
	}{{false, 1}, {false, manyCallers}, {true, 1}, {true, manyCallers}}
	s.others, s.victims = make([]*peer, len(kinds)), make([]*victim, len(kinds))
	var all errgroup.Group
	for i, k := range kinds {
		all.Go(func() error {
			n, err := s.open(ctx, fmt.Sprintf("frozen peer %d", i+1), anyPort, -1)
			if err != nil {
				return err
			}
			s.others[i] = n
			if err := n.Call(ctx, "receive", receiveArgs{}, nil); err != nil {
				return err
			}
			f, err := n.freeze(ctx, k.withPlugins)
			s.victims[i] = &victim{frozen: f, callers: k.callers}
			return err
		})
	}
	err := all.Wait()
	s.others = slices.DeleteFunc(s.others, func(n *peer) bool { return n == nil })
	s.victims = slices.DeleteFunc(s.victims, func(v *victim) bool { return v == nil })
	if err != nil {
		return err
	}
	return s.send(ctx)
}

// callFrozen calls each of them twice, one caller or many at a time.
func callFrozen(ctx context.Context, s *stage) error {
	victims := s.victims
	if err := s.awaitSent(ctx, s.o.Count/10); err != nil {
		return err
	}
	before, err := s.sender.stats(ctx)
	if err != nil {
		return err
	}
	limit := s.o.callTimeout()
	var all errgroup.Group
	for _, v := range victims {
		f := s.record(lab.Now(), "SIGSTOP a peer that was never called (%s), %d callers", v.what(), v.callers)
		all.Go(func() error {
			if err := s.sender.Call(ctx, "try", tryArgs{v.n.opened.Address, v.callers}, &v.first); err != nil {
				return err
			}
			return s.sender.Call(ctx, "try", tryArgs{v.n.opened.Address, v.callers}, &v.second)
		})
		f.Proof = "not called"
	}
	if err := all.Wait(); err != nil {
		return err
	}
	after, err := s.sender.stats(ctx)
	if err != nil {
		return err
	}
	for i, v := range victims {
		fault := s.faults[len(s.faults)-len(victims)+i]
		quick, slow := spread(v.first)
		quick2, slow2 := spread(v.second)
		fault.Proof = fmt.Sprintf("the first call failed after %s to %s, the second after %.2f to %.2f ms",
			lap(quick), lap(slow), milliseconds(quick2), milliseconds(slow2))
		s.require(slow <= limit+callSlack, "%s, %d callers: a first call took %s, the timeout is %s", v.what(), v.callers, lap(slow), limit)
		s.require(quick >= limit-callSlack, "%s, %d callers: a first call failed after %s already", v.what(), v.callers, lap(quick))
		s.require(slow2 < markedLimit, "%s, %d callers: a second call took %s", v.what(), v.callers, lap(slow2))
		for _, t := range slices.Concat(v.first, v.second) {
			s.require(t.Code == engine.NotSent.Error(), "%s, %d callers: a call ended as %q: %s", v.what(), v.callers, t.Code, t.Error)
		}
	}
	s.require(after.Marks-before.Marks == uint64(len(victims)), "%d marks for %d silent peers", after.Marks-before.Marks, len(victims))
	thawed := lab.Now()
	var back errgroup.Group
	for _, v := range victims {
		if err := v.thaw(); err != nil {
			return err
		}
		back.Go(func() error { return s.reach(ctx, v) })
	}
	err = back.Wait()
	s.note("all of them took a notification %s after they were resumed", lap(lab.Now()-thawed))
	s.require(lab.Now()-thawed <= usableLimit, "that took too long: the limit is %s", usableLimit)
	return err
}

// reach calls a node that was resumed until it answers.
func (s *stage) reach(ctx context.Context, v *victim) error {
	ctx, cancel := context.WithTimeout(ctx, backTimeout)
	defer cancel()
	for {
		var t []tried
		if err := s.sender.Call(ctx, "try", tryArgs{v.n.opened.Address, 1}, &t); err != nil {
			return err
		}
		if t[0].Error == "" {
			return nil
		}
		sleep(ctx, pollEvery)
	}
}

func spread(list []tried) (quickest, slowest time.Duration) {
	for i, t := range list {
		if i == 0 || t.Took < quickest {
			quickest = t.Took
		}
		slowest = max(slowest, t.Took)
	}
	return quickest, slowest
}

// freezeMidway freezes the receiver amid the stream, once its host alone and
// once with its plugins.
func freezeMidway(ctx context.Context, s *stage) error {
	for i, withPlugins := range []bool{false, true} {
		if err := s.awaitSent(ctx, s.o.Count*(150+450*i)/1000); err != nil {
			return err
		}
		at := lab.Now()
		f, err := s.receiver.freeze(ctx, withPlugins)
		fault := s.record(at, "SIGSTOP the receiver (%s)", f.what())
		if err != nil {
			_ = f.thaw()
			return err
		}
		stopped := lab.Now()
		sleep(ctx, frozenTime-(stopped-at))
		_, got := s.ledger.counts()
		resumed := lab.Now()
		if err := f.thaw(); err != nil {
			return err
		}
		s.thawed = append(s.thawed, resumed)
		fault.Proof = fmt.Sprintf("stopped after %s, resumed after %s", lap(stopped-at), lap(resumed-at))
		if err := s.flowing(ctx, resumed, ""); err != nil {
			return err
		}
		l := s.ledger.copy()
		for j := range l.arrived {
			if a := l.arrived[j]; a.At > stopped && a.At < resumed && j < got {
				s.require(false, "something arrived while the receiver was stopped")
				break
			}
		}
	}
	return s.hurry(ctx)
}

func judgeFrozenMidway(s *stage, l *ledger, _ *Result) {
	for i, resumed := range s.thawed {
		usable, acked := l.freshAfter(resumed)
		s.note("resumed (%s): what was sent after that arrived after %s, and was acknowledged after %s",
			[]string{"host alone", "host with its plugins"}[i], lap(usable-resumed), lap(acked-resumed))
		s.require(acked > 0 && acked-resumed <= usableLimit, "the peer was of use %s after it was resumed, the limit is %s", lap(acked-resumed), usableLimit)
	}
	s.require(len(s.thawed) == 2, "it was resumed %d times", len(s.thawed))
	var longest time.Duration
	if err := s.call(s.sender, "blocked", &longest); err == nil {
		s.note("the longest call of Notify took %.1f ms", milliseconds(longest))
		s.require(longest <= s.o.callTimeout(), "a call of Notify took %s, the timeout is %s", lap(longest), s.o.callTimeout())
	}
	s.requireHealthy()
}

// freshAfter is when the first notification that was sent after t arrived, and
// when the first was acknowledged; zero if none was.
func (l *ledger) freshAfter(t time.Duration) (arrived, acked time.Duration) {
	fresh := map[int]bool{}
	for _, x := range l.sent {
		if x.At > t {
			fresh[x.Index] = true
		}
	}
	for _, a := range l.arrived {
		if fresh[index(a.Name)] && (arrived == 0 || a.At < arrived) {
			arrived = a.At
		}
	}
	for _, e := range l.ended {
		if fresh[e.Index] && e.Acked && (acked == 0 || e.At < acked) {
			acked = e.At
		}
	}
	return arrived, acked
}

// requireHealthy checks that no node has given up a plugin or left a path
// paused.
func (s *stage) requireHealthy() {
	for _, n := range s.nodes() {
		var h healthReport
		if s.call(n, "health", &h) != nil {
			continue
		}
		s.require(len(h.Down) == 0, "the %s condemned plugins that were healthy: %v", n.name, h.Down)
		s.require(len(h.Paused) == 0, "the %s has left paths paused: %v", n.name, h.Paused)
		s.note("the %s: %d times a silent peer, %d pauses, no plugin down", n.name, h.Silent, h.Pauses)
	}
}

// call asks a node for something after the row; what goes wrong is a problem.
func (s *stage) call(n *peer, what string, result any) error {
	ctx, cancel := context.WithTimeout(context.Background(), reportTimeout)
	defer cancel()
	err := n.Call(ctx, what, nil, result)
	if err != nil {
		s.problems = append(s.problems, err.Error())
	}
	return err
}
