package sim

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSimulation runs seeds SIM_FIRST, 1, to SIM_SEEDS, 200, or SIM_SEED alone.
func TestSimulation(t *testing.T) {
	first, last := uint64(1), number(t, "SIM_SEEDS", 200)
	first = number(t, "SIM_FIRST", first)
	one := number(t, "SIM_SEED", 0)
	if one != 0 {
		first, last = one, one
	}
	var mu sync.Mutex
	total := map[string]int{}
	t.Run("seeds", func(t *testing.T) {
		for seed := first; seed <= last; seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, seed)
					w.run()
					if text := w.report(); text != "" {
						t.Errorf("seed %d: %s\nreplay with `make sim SEED=%d`; profile %+v", seed, text, seed, w.p)
					}
					if f := os.Getenv("SIM_TRACE"); f != "" {
						if err := os.WriteFile(f, []byte(strings.Join(w.all(), "\n")), 0o600); err != nil {
							t.Error(err)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					for k, n := range w.fired {
						total[k] += n
					}
				})
			})
		}
	})
	if one != 0 || last-first < 199 {
		t.Logf("what fired: %v", total)
		return
	}
	// Each kind of fault and each effect must have been there.
	for _, k := range faults {
		if total[k.name] == 0 {
			t.Errorf("no %q in seeds %d to %d", k.name, first, last)
		}
	}
	for _, k := range effects {
		if total[k] == 0 {
			t.Errorf("no %q in seeds %d to %d", k, first, last)
		}
	}
	t.Logf("what fired: %v", total)
}

// effects are what faults must have led to, by the engines' and the networks'
// own counts.
var effects = []string{
	"straggler", "straggler past expiry", "straggler of another life", "not taken", "backpressure",
	"dropped", "doubled", "delayed", "reordered", "refused by the plugin", "unknown to the plugin", "crashes", "hangs",
	"held", "control held", "control refused", "control delayed",
	"forged session", "forged epoch", "forged floor", "forged floor of a request", "ack of numbers never sent",
	"ack of ranges never sent", "ack of another session", "close of another session", "malformed", "truncated",
	"resent", "duplicates", "no room", "wrong life", "unknown session", "foreign acks", "out of range", "handed over",
	"short freeze", "long freeze", "freeze past the ack timeout", "freeze past a mark's expiry", "freeze past a session's expiry",
	"freezes noticed", "verdicts voided", "marks", "pauses", "forged number", "two names", "acknowledged", "not sent", "delivery unknown", "too late",
}

func number(t *testing.T, name string, otherwise uint64) uint64 {
	v := os.Getenv(name)
	if v == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// settle is how long after everything was healed traffic flows as before: the
// longest wait before a reconnect, and a plugin's restart before it.
const settle = 15 * time.Second

func (w *world) run() {
	w.latencies()
	for _, n := range w.nodes {
		n.open()
		time.Sleep(instant)
	}
	w.with(func() { w.faulty = true })
	for _, n := range w.nodes {
		for _, name := range transportNames {
			for _, t := range w.instances(n, name) {
				t.Set(w.p.base)
			}
		}
	}
	stop := make(chan struct{})
	var senders sync.WaitGroup
	for _, n := range w.nodes {
		senders.Go(func() { n.traffic(w.rng(10+uint64(n.i)), stop) })
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		w.watch(stop)
	}()
	w.harm(w.rng(2))
	close(stop)
	senders.Wait()
	<-watched
	time.Sleep(settle)
	w.probe()
	time.Sleep(w.p.longest + time.Second)
	w.leftovers()
	w.shut()
	w.check()
}

// watch looks once a second at what has a bound.
func (w *world) watch(stop <-chan struct{}) {
	for {
		select {
		case <-time.After(time.Second):
		case <-stop:
			return
		}
		for _, n := range w.nodes {
			l := n.living()
			if l == nil {
				continue
			}
			s := l.e.Stats()
			if s.QueuedBytes >= w.p.queueBytes+2*maxPayload {
				w.broken("", "%s: %d bytes are queued of %d", l, s.QueuedBytes, w.p.queueBytes)
			}
			w.mu.Lock()
			others := 0
			for _, m := range w.nodes {
				others += m.lives // its own is to itself
			}
			w.mu.Unlock()
			if s.Queued > w.p.queue || s.Sessions > others {
				w.broken("", "%s: %d queued of %d, %d sessions of %d lives", l, s.Queued, w.p.queue, s.Sessions, others)
			}
		}
	}
}

// probe wants everything to flow again: acknowledged within the time of a
// reconnect, and then over the preferred transport.
func (w *world) probe() {
	// An attempt to connect a better path can fail once, and the next one comes
	// with the next notification.
	rounds := []time.Duration{8 * time.Second, time.Second, time.Second, time.Second}
	for round, within := range rounds {
		var list []*sent
		for _, n := range w.nodes {
			for _, m := range w.nodes {
				if n == m {
					continue
				}
				for _, peer := range []string{fmt.Sprintf("n%d", m.i), fmt.Sprintf("m%d", m.i)} {
					time.Sleep(instant)
					name := fmt.Sprintf("probe-%d-n%d-%s", round, n.i, peer)
					if s := w.send(n.living(), m, name, peer, 10, within); s != nil {
						list = append(list, s)
					} else {
						w.broken(name, "not taken after everything was healed")
					}
				}
			}
		}
		time.Sleep(within + slack)
		for _, s := range list {
			if r := s.d.Report(); r.End != engine.Acknowledged {
				w.broken(s.name, "after everything was healed: %v %v", r.End, s.d.Err())
			} else if round == len(rounds)-1 && r.Transport != transportNames[0] {
				w.broken(s.name, "after everything was healed it went over %s", r.Transport)
			}
		}
	}
}

// leftovers looks at what must be gone when everything has ended.
func (w *world) leftovers() {
	for _, name := range transportNames {
		paths := 1
		if name == "fast" {
			paths = 2
		}
		for _, n := range w.nodes {
			if ends := w.fabrics[name].Endpoints(n.address); ends > paths*(len(w.nodes)-1) {
				w.broken("", "%s has %d endpoints of %s", n.address, ends, name)
			}
		}
	}
	for _, n := range w.nodes {
		l := n.living()
		s := l.e.Stats()
		if s.Sessions > len(w.nodes) { // one to itself
			w.broken("", "%s remembers %d sessions of %d nodes", l, s.Sessions, len(w.nodes))
		}
		if s.Queued > 0 {
			w.broken("", "%s: %d are queued although its reader waits", l, s.Queued)
		}
	}
}

// shut closes what lives; nothing is pending any more.
func (w *world) shut() {
	c := w.net.Faults()
	w.fired["control held"], w.fired["control refused"], w.fired["control delayed"] = c.Held, c.Refused, c.Delayed
	for _, f := range w.fabrics {
		w.fired["held"] += int(f.Counters().Held)
	}
	for _, l := range w.lives() {
		s := l.e.Stats()
		w.fired["freezes noticed"] += int(s.Freezes)
		w.fired["verdicts voided"] += int(s.Voided)
		w.fired["marks"] += int(s.Marks)
		w.fired["pauses"] += int(s.Pauses)
		taken := 0
		for _, q := range w.sends {
			if q.from == l && q.d != nil {
				taken++
			}
		}
		if s.Pending != 0 || int(s.Acked+s.Taken+s.Failed) != taken {
			w.broken("", "%s: took %d, of which %d acknowledged, %d handed over, %d failed and %d pending", l, taken, s.Acked, s.Taken, s.Failed, s.Pending)
		}
	}
	for _, n := range w.nodes {
		l := n.living()
		s := l.e.Stats()
		begun := time.Now()
		l.close(20 * time.Second)
		if took := time.Since(begun); took > 2*time.Second {
			w.broken("", "%s: Close of an engine with nothing to do took %v", l, took)
		}
		for _, t := range l.instances {
			c := t.Counts()
			w.fired["dropped"] += int(c.Send.Dropped + c.Receive.Dropped)
			w.fired["doubled"] += int(c.Send.Doubled + c.Receive.Doubled)
			w.fired["delayed"] += int(c.Send.Delayed + c.Receive.Delayed)
			w.fired["reordered"] += int(c.Send.Reordered + c.Receive.Reordered)
			w.fired["refused by the plugin"] += int(c.NotPosted)
			w.fired["unknown to the plugin"] += int(c.Unknown)
			w.fired["crashes"] += int(c.Crashes)
			w.fired["hangs"] += int(c.Hangs)
		}
		for k, v := range map[string]uint64{
			"resent": s.Resent, "duplicates": s.Duplicates, "no room": s.DroppedFull, "wrong life": s.WrongLife,
			"unknown session": s.UnknownSession, "foreign acks": s.ForeignAcks, "out of range": s.OutOfRange, "handed over": s.HandedOver,
		} {
			w.fired[k] += int(v)
		}
	}
}

// check compares what was sent, how it ended, and what arrived.
func (w *world) check() {
	synctest.Wait()
	arrived := map[string][]*arrival{}
	for _, a := range w.arrivals {
		arrived[a.name] = append(arrived[a.name], a)
	}
	for _, s := range w.sends {
		as := arrived[s.name]
		delete(arrived, s.name)
		lives := map[*life]int{}
		for _, a := range as {
			lives[a.at]++
			if a.at.n != s.to {
				w.broken(s.name, "received by %s, sent to %s", a.at, s.to.address)
			}
			if lives[a.at] > 1 {
				w.broken(s.name, "received twice by %s", a.at)
			}
		}
		if len(lives) > 1 {
			w.broken(s.name, "received in %d lives", len(lives))
		}
		if s.d == nil {
			if len(as) > 0 {
				w.broken(s.name, "received, although Notify did not take it")
			}
			continue
		}
		w.checkEnd(s, as)
	}
	for name := range arrived {
		w.broken(name, "received, and never sent")
	}
	if w.p.calm {
		w.checkVerdicts()
	}
}

func (w *world) checkEnd(s *sent, as []*arrival) {
	if s.ends != 1 {
		w.broken(s.name, "ended %d times", s.ends)
		return
	}
	if late := s.ended.Sub(s.from.due(s.deadline)); late > slack {
		w.broken(s.name, "ended %v after its deadline", late)
	}
	r, err := s.d.Report(), s.d.Err()
	var failure *engine.DeliveryError
	switch {
	case r.End == engine.Acknowledged:
		w.fired["acknowledged"]++
		if len(as) == 0 {
			w.broken(s.name, "acknowledged, and never queued")
			return
		}
		a := as[0]
		if a.stamp.Seq != r.Seq || a.stamp.Sender != s.from.e.Self().Incarnation {
			w.broken(s.name, "acknowledged as number %d, received with %+v", r.Seq, a.stamp)
		}
		if a.at.opened.After(s.ended) {
			w.broken(s.name, "received in a life that began after the acknowledgement")
		}
	case r.End != engine.Failed || !errors.As(err, &failure):
		w.broken(s.name, "ended as %v: %v", r.End, err)
	case failure.Code == engine.NotSent:
		w.fired["not sent"]++
		if len(as) > 0 {
			w.broken(s.name, "received, although it was never sent: %v", err)
		}
	case failure.Code == engine.DeliveryUnknown:
		w.fired["delivery unknown"]++
		if len(as) > 0 {
			w.fired["too late"]++
		}
	default:
		w.broken(s.name, "failed with %v", err)
	}
}
