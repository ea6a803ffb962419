package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// RDMARows is the table of the rdma transport, with tcp as another way.
func RDMARows() []Row {
	rows := []Row{
		{Name: "no fault", Scenario: "no fault", judge: judgeAllRDMA},
		{
			Name: "sender to err", Scenario: "sender's queue pair moved to ERR mid-stream, three times",
			plugin: rdmaFaulty, pace: 1000, kills: moves, faults: move(senderName, "error"), judge: judgeMoved,
		},
		{
			Name: "receiver to err", Scenario: "receiver's queue pair moved to ERR mid-stream, three times",
			plugin: rdmaFaulty, pace: 1000, kills: moves, faults: move(receiverName, "error"), judge: judgeMoved,
		},
		{
			Name: "receiver to reset", Scenario: "receiver's queue pair moved to RESET mid-stream, completions waiting",
			plugin: rdmaFaulty, pace: 1000, faults: reset, judge: judgeReset,
		},
		{
			Name: "retired while completions wait", Scenario: "receiver's endpoints end while 256 completions wait; protocol 1",
			plugin: rdmaFaulty, unfit: needRails, pace: 500, setup: setupRetire, begin: beginRetire, faults: retire, taken: true, noTransfers: true,
		},
		{
			Name: "rail cut", Scenario: "receiver's rail 0 down mid-stream, and up again",
			unfit: needRails, lasts: 12 * time.Second, faults: cutRail, judge: judgeRail,
		},
		{
			Name: "rails cut", Scenario: "receiver's rails both down mid-stream, and up again",
			unfit: needRails, lasts: 12 * time.Second, faults: cutRails, judge: judgeRails,
		},
		{
			Name: "rails cut, no other way", Scenario: "receiver's rails both down, rdma alone",
			unfit: needRails, lasts: 12 * time.Second, setup: setupAlone, faults: cutAlone, judge: judgeAlone, partial: true,
		},
		{
			Name: "rdma killed", Scenario: "SIGKILL sender's rdma plugin, then receiver's rdma plugin, twice each",
			pace: 1000, kills: rdmaKills, faults: killRDMA, judge: judgeRDMAKilled,
		},
		{
			Name: "frozen mid-stream", Scenario: "SIGSTOP receiver mid-stream, resumed after 5 s; host alone, then with plugins",
			lasts: 16 * time.Second, setup: setupFrozenRDMA, faults: freezeMidway, judge: judgeFrozenMidway,
		},
		{
			Name: "dead path", Scenario: "every path cut without a port that says so, and healed",
			unfit: needSimulation, lasts: 12 * time.Second, faults: deadPath, judge: judgeDead,
		},
		{
			Name: "flooded reader", Scenario: "a peer floods a reader that has stopped; another peer goes on",
			pace: 1000, setup: setupFlood, begin: beginFlood, faults: flood,
		},
		{
			Name: "node restarted", Scenario: "receiver node killed and started again at the same address",
			pace: 1000, faults: restartReceiver, judge: judgeRDMARestarted, partial: true,
		},
	}
	for i := range rows {
		more := rows[i].setup
		rows[i].prepare = prepareRDMA
		rows[i].setup = func(s *stage, node string, x *lab.Setup) {
			setupRDMA(s, node, x)
			if more != nil {
				more(s, node, x)
			}
		}
	}
	return inOrder([]string{rdma, first}, rows)
}

const (
	moves     = 3
	rdmaKills = 4
	// downTime is how long rails are down.
	downTime = 3 * time.Second
)

// needDevices says why rdma cannot carry on this machine, where the rows are for
// its devices: everything would go over tcp.
func (o Options) needDevices(ctx context.Context) error {
	if o.Simulate || len(o.Hosts) > 0 {
		return nil
	}
	here, list, err := engine.Examine(ctx, engine.Config{
		Plugins:      engine.PluginsConfig{Dir: o.PluginsDir, Lock: o.Lock},
		Notification: engine.NotificationConfig{RPCFallback: new(false)},
		Transports:   []engine.TransportConfig{{Name: rdma}},
	})
	if err != nil {
		return err
	}
	for _, f := range append(here, list[0].Findings...) {
		if f.State == engine.FindingAbsent || f.State == engine.FindingProblem {
			return fmt.Errorf("rdma cannot carry on this machine: %s: %s; use --simulate for simulated devices, and see `hawser doctor rdma`", f.Subject, f.Found)
		}
	}
	return nil
}

func judgeAllRDMA(s *stage, _ *ledger, r *Result) {
	s.require(r.By[rdma] == r.Expected, "%d of %d went over rdma", r.By[rdma], r.Expected)
}

// move moves the queue pairs of a node, again and again, whenever rdma carries.
func move(node, to string) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		var last time.Duration
		for i := range moves {
			ready := func() error { return s.flowing(ctx, last, rdma) }
			err := s.mid(ctx, 100+i*800/moves, ready, func() error {
				f := s.record(lab.Now(), "%s's queue pairs to %s", node, strings.ToUpper(to))
				moved, err := s.verbs(ctx, node, to)
				if err != nil {
					return err
				}
				last = lab.Now()
				if err := s.flowing(ctx, last, rdma); err != nil {
					return err
				}
				f.Proof = fmt.Sprintf("moved %s; rdma carries again after %s", moved, lap(lab.Now()-last))
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
}

func judgeMoved(s *stage, _ *ledger, r *Result) {
	s.require(r.By[rdma] > 0, "nothing went over rdma")
	s.require(r.Stats[senderName].Connects+r.Stats[senderName].Accepts > moves, "no new endpoints: %d", r.Stats[senderName].Connects)
}

// reset moves the receiver's queue pairs to RESET while completions wait. The
// sender's device was told that all of them had arrived.
func reset(ctx context.Context, s *stage) error {
	ready := func() error { return s.flowing(ctx, 0, rdma) }
	return s.mid(ctx, 300, ready, func() error {
		held, err := s.holdBack(ctx)
		if err != nil {
			return err
		}
		f := s.record(lab.Now(), "receiver's queue pairs to RESET")
		moved, err := s.verbs(ctx, receiverName, "reset")
		if err != nil {
			return err
		}
		_, err = s.verbs(ctx, receiverName, "release")
		f.Proof = fmt.Sprintf("moved %s, with %d pending at the sender", moved, held)
		return err
	})
}

// holdBack keeps the receiver's completions back until a burst is pending.
func (s *stage) holdBack(ctx context.Context) (pending int, err error) {
	if _, err := s.verbs(ctx, receiverName, "hold"); err != nil {
		return 0, err
	}
	if err := s.pace(ctx, s.trickle(), burstSize); err != nil {
		return 0, err
	}
	err = s.ledger.await(ctx, "a burst to be pending", func(l *ledger) bool {
		pending = len(l.sent) - len(l.ended)
		return pending >= min(burstSize, s.o.Count/10)
	})
	return pending, err
}

func judgeReset(s *stage, _ *ledger, r *Result) {
	s.require(r.Resent > 0, "nothing was resent")
	dropped := int(r.Resent) - int(r.Suppressed)
	if s.o.Simulate {
		s.require(dropped > 0, "no completion was dropped: every copy that was sent again was a second one")
	}
	s.note("%d were sent again, of which %d had arrived: the completions of %d were dropped", r.Resent, r.Suppressed, dropped)
}

// burstSize is as many as an endpoint has in flight.
const burstSize = 256

// cutRail takes the receiver's rail 0 down and up again.
func cutRail(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count/8); err != nil {
		return err
	}
	if err := s.carrying(ctx, "rail 0 to carry", func(p engine.PathStatus) bool { return onRail(p, 0) }); err != nil {
		return err
	}
	at := lab.Now()
	f := s.record(at, "receiver's rail 0 down")
	defer s.heal(receiverName)
	if err := s.rail(ctx, receiverName, 0, false); err != nil {
		return err
	}
	if err := s.carrying(ctx, "rail 1 to carry", func(p engine.PathStatus) bool { return onRail(p, 1) }); err != nil {
		return err
	}
	moved := lab.Now()
	if err := s.flowing(ctx, moved, rdma); err != nil {
		return err
	}
	sleep(ctx, downTime-(lab.Now()-at))
	up := lab.Now()
	if err := s.rail(ctx, receiverName, 0, true); err != nil {
		return err
	}
	if err := s.carrying(ctx, "rail 0 to carry again", func(p engine.PathStatus) bool { return onRail(p, 0) }); err != nil {
		return err
	}
	f.Proof = fmt.Sprintf("rail 1 carried after %s; rail 0 carries again %s after it was up", lap(moved-at), lap(lab.Now()-up))
	if err := s.flowing(ctx, lab.Now(), rdma); err != nil {
		return err
	}
	return s.hurry(ctx)
}

// hurry sends the rest at the pace of a row without waits: its faults are over.
func (s *stage) hurry(ctx context.Context) error {
	pace := hurriedPace
	if len(s.o.Hosts) > 0 {
		pace = emulatedPace
	}
	return s.pace(ctx, pace, 0)
}

const hurriedPace = 1000

func judgeRail(s *stage, l *ledger, r *Result) {
	s.require(r.By[rdma] > 0, "nothing went over rdma")
	if len(s.faults) > 0 {
		at := s.faults[0].when
		_, ok := l.arrivedSince(at+downTime/2, func(a arrival) bool { return a.Transport == rdma && a.At < at+downTime })
		s.require(ok, "nothing arrived over rdma while rail 0 was down")
	}
}

// cutRails takes both down and up again.
func cutRails(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count/8); err != nil {
		return err
	}
	if err := s.flowing(ctx, 0, rdma); err != nil {
		return err
	}
	at := lab.Now()
	f := s.record(at, "receiver's rails down")
	defer s.heal(receiverName)
	if err := s.rails(ctx, receiverName, false); err != nil {
		return err
	}
	down := lab.Now()
	if err := s.flowing(ctx, down, first); err != nil {
		return err
	}
	other := lab.Now()
	sleep(ctx, downTime-(lab.Now()-at))
	up := lab.Now()
	if err := s.rails(ctx, receiverName, true); err != nil {
		return err
	}
	if err := s.flowing(ctx, lab.Now(), rdma); err != nil {
		return err
	}
	f.Proof = fmt.Sprintf("tcp carried after %s; rdma carries again %s after the rails were up", lap(other-down), lap(lab.Now()-up))
	return s.hurry(ctx)
}

func judgeRails(s *stage, _ *ledger, r *Result) {
	s.require(r.By[rdma] > 0 && r.By[first] > 0, "rdma carried %d, tcp %d", r.By[rdma], r.By[first])
}

// aloneDeadline is how long a notification may take that has no other way.
const aloneDeadline = 2 * time.Second

func setupAlone(s *stage, _ string, x *lab.Setup) {
	x.Transports = []string{rdma}
	x.DeadlineMS = int((aloneDeadline * s.o.slow()).Milliseconds())
}

// cutAlone takes the only way away until some have failed, and gives it back.
func cutAlone(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count/8); err != nil {
		return err
	}
	if err := s.flowing(ctx, 0, rdma); err != nil {
		return err
	}
	f := s.record(lab.Now(), "receiver's rails down")
	defer s.heal(receiverName)
	if err := s.rails(ctx, receiverName, false); err != nil {
		return err
	}
	failed := 0
	err := s.ledger.await(ctx, "some to fail", func(l *ledger) bool {
		failed = 0
		for _, e := range l.ended {
			if !e.Acked {
				failed++
			}
		}
		return failed >= 100
	})
	if err != nil {
		return err
	}
	up := lab.Now()
	if err := s.rails(ctx, receiverName, true); err != nil {
		return err
	}
	if err := s.flowing(ctx, lab.Now(), rdma); err != nil {
		return err
	}
	f.Proof = fmt.Sprintf("%d had failed when they were up again; rdma carries %s after that", failed, lap(lab.Now()-up))
	return s.hurry(ctx)
}

// judgeAlone: each that failed says what was tried, and what was sent after the
// healing arrives.
func judgeAlone(s *stage, l *ledger, r *Result) {
	s.require(r.By[rdma] == r.Received, "%d of %d went over rdma", r.By[rdma], r.Received)
	bare, example, unlisted := 0, "", ""
	for _, e := range l.ended {
		if e.Acked {
			continue
		}
		if !strings.Contains(e.Error, "tried "+rdma) && !strings.Contains(e.Error, "failed on "+rdma) {
			bare, unlisted = bare+1, e.Error
		}
		example = e.Error
	}
	s.require(bare == 0, "%d of the failures list no attempt over rdma: %s", bare, unlisted)
	s.require(r.failed() > 0, "none failed")
	s.note("failed: %s; one of them: %.300s", codes(r.Failed), example)
	s.judgeKept(l, r)
}

// judgeKept: what was acknowledged arrived, and what ended as not sent did not.
func (s *stage) judgeKept(l *ledger, r *Result) {
	arrived := map[string]bool{}
	for _, a := range l.arrived {
		arrived[a.Name] = true
	}
	kept := 0
	for _, e := range l.ended {
		here := arrived[name(e.Index, s.o.Count)]
		switch {
		case e.Index == s.o.Count:
		case e.Acked && here:
			kept++
		case e.Acked:
			s.require(false, "%s was acknowledged and never arrived", name(e.Index, s.o.Count))
		case here && e.Code == engine.NotSent.Error():
			s.require(false, "%s ended as not sent, and arrived", name(e.Index, s.o.Count))
		}
	}
	r.Received, r.Expected = kept, r.Acked
}

// setupFrozenRDMA has the RPC fallback, as by default. A NIC answers for a frozen
// process, and its endpoints live; a simulated one answers nothing, so that
// there the retries have to last for longer than the freeze.
func setupFrozenRDMA(s *stage, node string, x *lab.Setup) {
	setupFrozen(s, node, x)
	x.Transports = append(slices.Clone(x.Transports), second)
	if s.o.Simulate {
		x.Settings = map[string]json.RawMessage{rdma: json.RawMessage(`{"endpoint": {"send_timeout": 19}}`)}
	}
}

// killRDMA kills the rdma plugins in turn.
func killRDMA(ctx context.Context, s *stage) error {
	var last time.Duration
	of := []*peer{s.sender, s.receiver}
	for i := range rdmaKills {
		var t *target
		ready := func() (err error) {
			if err = s.flowing(ctx, last, rdma); err == nil {
				t, err = of[i%len(of)].aim(ctx, rdma)
			}
			return err
		}
		err := s.mid(ctx, (i+1)*900/rdmaKills, ready, func() (err error) {
			defer t.Close()
			f := s.record(lab.Now(), "SIGKILL %s (pid %d)", t.name(), t.PID())
			if last, err = t.kill(ctx); err != nil {
				return err
			}
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

func judgeRDMAKilled(s *stage, _ *ledger, r *Result) {
	s.require(r.By[rdma] > 0, "nothing went over rdma")
}

// deadPath cuts every path so that no port hears of it.
func deadPath(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count/8); err != nil {
		return err
	}
	if err := s.flowing(ctx, 0, rdma); err != nil {
		return err
	}
	cut := func(word string) error {
		args := []string{"sim", s.dir, word}
		for a := range railCount {
			for b := range railCount {
				args = append(args, senderName, fmt.Sprint(a), receiverName, fmt.Sprint(b))
			}
		}
		_, err := s.use(ctx, senderName, args...)
		return err
	}
	at := lab.Now()
	f := s.record(at, "every path cut silently")
	if err := cut("cut"); err != nil {
		return err
	}
	cutAt := lab.Now()
	err := waitFor(ctx, backTimeout, "the path to be reported dead", func() (bool, error) {
		paths, err := s.sender.paths(ctx)
		up := slices.ContainsFunc(paths, func(p engine.PathStatus) bool { return p.Transport == rdma && onRail(p, 0) && p.Usable() })
		return !up, err
	})
	if err != nil {
		return err
	}
	// When it was cut between the two is not known.
	s.deadAfter, s.deadWithin = lab.Now()-cutAt, lab.Now()-at
	if err := s.flowing(ctx, lab.Now(), first); err != nil {
		return err
	}
	sleep(ctx, downTime-(lab.Now()-at))
	up := lab.Now()
	if err := cut("heal"); err != nil {
		return err
	}
	if err := s.flowing(ctx, lab.Now(), rdma); err != nil {
		return err
	}
	f.Proof = fmt.Sprintf("reported dead after %s; rdma carries again %s after it was healed", lap(s.deadAfter), lap(lab.Now()-up))
	return s.hurry(ctx)
}

// impliedDead is what endpoint.send_timeout 14 and send_retry_count 7 imply:
// the first try and seven more, each waiting 4.096 us times 2 to the 14th.
const impliedDead = 8 * 4096 * time.Nanosecond << 14

func judgeDead(s *stage, _ *ledger, r *Result) {
	s.note("timeout and retry count imply %s, it took %s", lap(impliedDead), lap(s.deadAfter))
	s.require(s.deadWithin >= impliedDead/2 && s.deadAfter <= 2*impliedDead,
		"a dead path was reported after %s to %s, %s is implied", lap(s.deadAfter), lap(s.deadWithin), lap(impliedDead))
	s.require(r.By[first] > 0, "nothing went over tcp meanwhile")
}

func judgeRDMARestarted(s *stage, l *ledger, r *Result) {
	judgeRestarted(s, l, r)
	_, ok := l.arrivedSince(0, func(a arrival) bool { return a.Life == 2 && a.Transport == rdma })
	s.require(ok, "nothing reached the second life over rdma")
	s.note("%d endpoints were made to the first life and the second", r.Stats[senderName].Connects)
}
