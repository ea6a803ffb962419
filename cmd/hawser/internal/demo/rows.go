package demo

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// Row is a scenario.
type Row struct {
	// Number is its place in the table, from 1; it and Name, which is short, are
	// for --row. Scenario says what happens.
	Number   int    `json:"number"`
	Name     string `json:"name"`
	Scenario string `json:"scenario"`

	// pace is how fast a sender sends; with lasts so that it takes as long.
	lasts  time.Duration
	waits  int // timeouts of calls that it waits for, beside that
	pace   int // notifications a second at most, 0 is as fast as they are taken
	kills  int // faults of which each has to wait for the one before
	faults func(context.Context, *stage) error
	// judge looks at what is special about the row, beside what all promise.
	judge func(*stage, *ledger, *Result)
	// plugin is the binary that the row needs beside the transports' own, or
	// empty. It is the first transport's on both nodes.
	plugin string
	// prepare runs before the nodes start, setup changes their configuration,
	// begin starts the stream, sizes are its notifications'.
	prepare func(*stage) error
	setup   func(s *stage, node string, x *lab.Setup)
	begin   func(context.Context, *stage) error
	sizes   func(count int) sizes
	// transports are what the nodes run, in order of preference.
	transports []string
	// unfit says why the row cannot be run with these options, or nothing.
	unfit func(Options) string
	// partial: what was pending may end as failed. taken: notifications end
	// when the peer's transport has them.
	partial, taken bool
	// noTransfers: no notification goes with a transfer, since its end would
	// not tell what the row is about, or the row is about how fast
	// notifications are.
	noTransfers bool
	// count is its own number of notifications, and limit how long it may take,
	// if not as the others.
	count int
	limit time.Duration
}

// Rows is the table of plain transports.
func Rows() []Row {
	return inOrder([]string{first, second}, []Row{
		{Name: "no fault", Scenario: "no fault"},
		{
			Name: "transport disabled", Scenario: "sender's first transport disabled mid-stream",
			pace: 2000, faults: disable, judge: judgeDisabled,
		},
		{
			Name: "tcp killed", Scenario: "SIGKILL sender's tcp plugin, then receiver's tcp plugin, three times each",
			pace: 1000, kills: turnKills, faults: killInTurn, judge: judgeKilled,
		},
		{
			Name: "tcp stopped", Scenario: "SIGSTOP receiver's tcp plugin",
			pace: 800, faults: stop, judge: judgeStopped,
		},
		{
			Name: "all killed", Scenario: "SIGKILL both nodes' both plugins, ten times at random",
			pace: 800, kills: killRounds, faults: killAll, judge: judgeAllKilled,
		},
		{
			Name: "receiver restarted", Scenario: "receiver node killed and started again at the same address",
			pace: 1000, faults: restartReceiver, judge: judgeRestarted, partial: true,
		},
		{
			Name: "faulty tcp", Scenario: "1% of tcp's frames dropped, doubled, reordered, delayed, both ways",
			pace: 2000, plugin: faultyPlugin, prepare: prepareFaulty, setup: setupFaulty, faults: misbehave, judge: judgeFaulty,
		},
		{
			Name: "tcp cut", Scenario: "tcp path cut, healed after 3 s",
			lasts: 9 * time.Second, prepare: prepareProxies, setup: setupProxies, faults: cutBoth, judge: judgeCut,
		},
		{
			Name: "tcp half cut", Scenario: "tcp path cut in one direction only, then in the other, 3 s each",
			lasts: 12 * time.Second, prepare: prepareProxies, setup: setupProxies, faults: cutHalf, judge: judgeCut,
		},
		{
			Name: "oversize", Scenario: "oversize: 1 MiB and 16 MiB among small ones; one byte more",
			pace: 1000, sizes: oversizes, faults: tooLarge, judge: judgeOversize,
		},
		{
			Name: "reader away", Scenario: "reader stops reading for 10 s under load from two senders",
			lasts: 10 * time.Second, setup: setupAway, begin: beginAway, sizes: sizesAway, faults: away, judge: judgeAway, noTransfers: true,
		},
		{
			Name: "frozen peer", Scenario: "SIGSTOP peers never called, host alone and with its plugins; two calls",
			lasts: 6 * time.Second, waits: 1, setup: setupFrozen, begin: freezePeers, faults: callFrozen,
		},
		{
			Name: "frozen mid-stream", Scenario: "SIGSTOP receiver mid-stream, resumed after 5 s; host alone, then with plugins",
			lasts: 16 * time.Second, setup: setupFrozen, faults: freezeMidway, judge: judgeFrozenMidway,
		},
		{
			Name: "protocol 0", Scenario: "receiver at protocol 0; SIGKILL sender's tcp plugin mid-stream",
			pace: 1000, kills: rawKills, prepare: prepareRaw, setup: setupRaw, faults: killRaw, judge: judgeRaw, taken: true, partial: true, noTransfers: true,
		},
		{
			Name: "protocol 1", Scenario: "receiver at protocol 1; SIGKILL tcp plugins mid-stream",
			pace: 1000, kills: compatKills, setup: receiverAt(1), faults: killCompat, judge: judgeCompat, taken: true, noTransfers: true,
		},
		{
			Name: "a million", Scenario: "a million unpaced, 1% of tcp's frames dropped, both ways",
			count: 1_000_000, limit: 5 * time.Minute, plugin: faultyPlugin, prepare: prepareFaulty, setup: setupFaulty,
			faults: dropSome, judge: judgeMillion, noTransfers: true,
		},
	})
}

// inOrder numbers the rows of a table.
func inOrder(transports []string, rows []Row) []Row {
	for i := range rows {
		rows[i].Number, rows[i].transports = i+1, transports
	}
	return rows
}

const (
	first  = "tcp"
	second = "rpcfallback"
	// gapLimit is how long a plugin's death may hold up arrivals.
	gapLimit = 500 * time.Millisecond
	// healthDeadline is when a plugin that does not answer is given up:
	// plugins.health_interval_ms and plugins.health_timeout_ms.
	healthDeadline = 3 * time.Second
	turnKills      = 6
	killRounds     = 10
)

// disable takes the sender's first transport out of its configuration.
func disable(ctx context.Context, s *stage) error {
	return s.mid(ctx, 500, nil, func() error {
		f := s.record(lab.Now(), "%s taken out of the sender's configuration", first)
		if err := s.sender.Call(ctx, "reload", []string{second}, nil); err != nil {
			return err
		}
		var left []lab.Transport
		if err := s.sender.Call(ctx, "transports", nil, &left); err != nil {
			return err
		}
		s.require(len(left) == 1 && left[0].Name == second, "the sender still runs %v", left)
		f.Proof = fmt.Sprintf("drained and stopped after %s; the sender runs %s only", lap(lab.Now()-f.when), second)
		return s.flowing(ctx, lab.Now(), second)
	})
}

func judgeDisabled(s *stage, _ *ledger, r *Result) {
	s.require(r.By[first] > 0, "nothing went over %s before", first)
	s.require(r.By[second] > 0, "nothing went over %s after", second)
}

func killInTurn(ctx context.Context, s *stage) error {
	return s.killTCP(ctx, turnKills, s.sender, s.receiver)
}

// killTCP kills the nodes' tcp plugins, one after the other, so many times in
// all, whenever tcp carries again and a burst is on its way.
func (s *stage) killTCP(ctx context.Context, times int, of ...*peer) error {
	var last time.Duration
	for i := range times {
		var t *target
		ready := func() (err error) {
			if err = s.flowing(ctx, last, first); err == nil {
				t, err = of[i%len(of)].aim(ctx, first)
			}
			return err
		}
		err := s.mid(ctx, (i+1)*900/times, ready, func() (err error) {
			defer t.Close()
			if last, err = t.kill(ctx); err != nil {
				return err
			}
			f := s.record(last, "SIGKILL %s (pid %d)", t.name(), t.PID())
			now, err := t.replaced(ctx)
			f.Proof = fmt.Sprintf("gone; instance %d replaced %d after %s", now.Instance, t.plugin.Instance, lap(lab.Now()-last))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func judgeKilled(s *stage, _ *ledger, r *Result) {
	s.require(r.LongestGap < gapLimit, "the longest gap between arrivals is %s, the limit %s", lap(r.LongestGap), gapLimit)
	s.require(r.By[first] > 0, "nothing went over %s", first)
	s.require(r.By[second] > 0, "nothing went over %s while %s was down", second, first)
}

// stop freezes the receiver's tcp plugin.
func stop(ctx context.Context, s *stage) error {
	var t *target
	ready := func() (err error) {
		if err = s.flowing(ctx, 0, first); err == nil {
			t, err = s.receiver.aim(ctx, first)
		}
		return err
	}
	return s.mid(ctx, 250, ready, func() error {
		defer t.Close()
		at := lab.Now()
		if err := t.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		f := s.record(at, "SIGSTOP %s (pid %d)", t.name(), t.PID())
		check, cancel := context.WithTimeout(ctx, goneTimeout)
		defer cancel()
		s.require(t.WaitStopped(check), "process %d never stopped", t.PID())
		if err := s.flowing(ctx, lab.Now(), second); err != nil {
			return err
		}
		if err := t.waitGone(ctx, backTimeout); err != nil {
			return err
		}
		killed := lab.Now() - at
		now, err := t.replaced(ctx)
		f.Proof = fmt.Sprintf("stopped; killed after %s, instance %d replaced %d after %s",
			lap(killed), now.Instance, t.plugin.Instance, lap(lab.Now()-at))
		return err
	})
}

func judgeStopped(s *stage, l *ledger, r *Result) {
	if len(s.faults) == 0 {
		return
	}
	at := s.faults[0].when
	a, ok := l.arrivedSince(at, func(a arrival) bool { return a.Transport == second })
	s.require(ok && a.At-at <= healthDeadline, "traffic moved after %s, the health deadline is %s", lap(a.At-at), healthDeadline)
	s.require(r.LongestGap <= healthDeadline, "the longest gap between arrivals is %s, the health deadline %s", lap(r.LongestGap), healthDeadline)
	s.require(r.Resent > 0, "nothing was resent: nothing was on its way")
	if ok {
		s.note("traffic moved to %s after %s (health deadline %s)", second, lap(a.At-at), healthDeadline)
	}
}

// killAll kills both plugins of both nodes, in random order at random moments,
// whenever all are up and something arrives.
func killAll(ctx context.Context, s *stage) error {
	var last time.Duration
	for i := range killRounds {
		var all []*target
		ready := func() (err error) {
			if err = s.flowing(ctx, last, ""); err == nil {
				all, err = s.aimAll(ctx)
			}
			return err
		}
		part := (i*950 + s.random.IntN(600)) / killRounds
		err := s.mid(ctx, max(part, 10), ready, func() (err error) {
			last, err = s.killRound(ctx, i+1, all)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// aimAll holds on to every plugin of both nodes, in random order.
func (s *stage) aimAll(ctx context.Context) ([]*target, error) {
	var all []*target
	for _, n := range []*peer{s.sender, s.receiver} {
		for _, name := range n.transports {
			t, err := n.aim(ctx, name)
			if err != nil {
				return all, err
			}
			all = append(all, t)
		}
	}
	s.random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all, nil
}

// killRound kills them one after the other and waits for all to be replaced.
func (s *stage) killRound(ctx context.Context, round int, all []*target) (last time.Duration, err error) {
	start := lab.Now()
	var order []string
	for _, t := range all {
		defer t.Close()
		if last, err = t.kill(ctx); err != nil {
			return last, err
		}
		order = append(order, fmt.Sprintf("%s %s (%d)", t.n.name, t.plugin.Name, t.PID()))
		time.Sleep(time.Duration(s.random.IntN(20)) * time.Millisecond)
	}
	f := s.record(start, "round %d: SIGKILL %s", round, strings.Join(order, ", "))
	var waits errgroup.Group
	for _, t := range all {
		waits.Go(func() error { _, err := t.replaced(ctx); return err })
	}
	err = waits.Wait()
	f.Proof = fmt.Sprintf("%d gone within %s, all replaced after %s", len(all), lap(last-start), lap(lab.Now()-start))
	return last, err
}

func judgeAllKilled(s *stage, _ *ledger, r *Result) {
	s.require(len(s.faults) == killRounds, "%d rounds of kills instead of %d", len(s.faults), killRounds)
	s.require(r.Resent > 0, "nothing was resent: nothing was on its way")
}

// restartReceiver kills the receiving node and starts it again.
func restartReceiver(ctx context.Context, s *stage) error {
	old := s.receiver
	var plugins []*target
	ready := func() error {
		for _, name := range old.transports {
			t, err := old.aim(ctx, name)
			if err != nil {
				return err
			}
			plugins = append(plugins, t)
		}
		return s.flowing(ctx, 0, "")
	}
	return s.mid(ctx, 330, ready, func() error {
		killed, pending, err := s.killAmid(ctx, old)
		if err != nil {
			return err
		}
		f := s.record(killed, "SIGKILL the receiver (pid %d), which had not answered %d", old.PID(), pending)
		if err := s.pace(ctx, s.trickle(), 0); err != nil {
			return err
		}
		for _, t := range plugins {
			defer t.Close()
			if err := t.waitGone(ctx, goneTimeout); err != nil {
				return err
			}
		}
		f.Proof = fmt.Sprintf("it and its %d plugins gone after %s", len(plugins), lap(lab.Now()-killed))
		return s.secondLife(ctx, old)
	})
}

// secondLife starts the receiver again where the old one listened, and waits
// until it has received something.
func (s *stage) secondLife(ctx context.Context, old *peer) error {
	f := s.record(lab.Now(), "the receiver started again at %s", old.opened.Address)
	if err := s.openReceiver(ctx, old.opened.Address); err != nil {
		return err
	}
	now := s.receiver.opened
	s.require(now.Address == old.opened.Address, "it listens at %s instead", now.Address)
	s.require(now.Incarnation != old.opened.Incarnation, "it has the same incarnation")
	f.Proof = fmt.Sprintf("pid %d, a new incarnation, up after %s", s.receiver.PID(), lap(lab.Now()-f.when))
	var back arrival
	err := s.ledger.await(ctx, "something to arrive in the second life", func(l *ledger) (ok bool) {
		back, ok = l.arrivedSince(f.when, func(a arrival) bool { return a.Life == s.life })
		return ok
	})
	s.note("the new life received something %s after it was started", lap(back.At-f.when))
	return err
}

// killAmid stops a node for as long as it takes until something is pending
// that it has not acknowledged, and kills it.
func (s *stage) killAmid(ctx context.Context, n *peer) (when time.Duration, pending int, err error) {
	h, err := n.host.Hold(ctx, n.PID(), 0)
	if err != nil {
		return 0, 0, err
	}
	defer h.Close()
	if err := h.Signal(syscall.SIGSTOP); err != nil {
		return 0, 0, err
	}
	err = s.ledger.await(ctx, "something to be pending", func(l *ledger) bool {
		pending = len(l.sent) - len(l.ended)
		return pending >= s.o.Count/100
	})
	when = lab.Now()
	n.Kill()
	return when, pending, err
}

func judgeRestarted(s *stage, l *ledger, r *Result) {
	if len(s.faults) < 2 {
		return
	}
	v := l.inLives(s.o.Count, s.faults[0].when, s.faults[1].when)
	s.problems = append(s.problems, v.problems...)
	s.require(r.failed() > 0, "nothing was pending when the receiver was killed")
	s.require(v.after > 0, "nothing was sent after the second life had begun to receive")
	r.Received, r.Expected = v.kept, r.Acked-v.unread
	s.require(r.Received == r.Expected, "%d of %d never arrived", r.Expected-r.Received, r.Expected)
	s.note("%d arrived in the first life and %d in the second: %d that were acknowledged, and %d that ended as failed",
		v.first, v.second, v.kept, v.strays)
	s.note("of %d sent %d were acknowledged, of which %d died unread with the first life, and %d ended as failed (%s)",
		r.Acked+r.failed(), r.Acked, v.unread, r.failed(), codes(r.Failed))
}

// lap is a duration for people.
func lap(d time.Duration) string {
	if d < time.Second {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
