//go:build linux

package scenarios

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
)

// A fence's rounds.
const (
	fenceBytes = 4 << 20
	// fenceCaught is how many bytes of an op have to be on their way into the
	// plugin that is stopped, and fencePackets how many packets of its real
	// device, of 1 KiB at least.
	fenceCaught  = 64 << 10
	fencePackets = 64
	// fenceLate is how long late bytes may take that the plugin has read.
	fenceLate = 50 * time.Millisecond
	// fenceGrace is how long an op may take to be on its way where no queue of
	// a socket tells: over the simulated RDMA, whose device is the process.
	fenceGrace = 50 * time.Millisecond
	// fenceHeld is how long a plugin is stopped at most, and fenceTime how long a
	// machine that is slow may stop it: when it is not continued in time for a
	// fence, which is 10 s, the op ends as OutcomeUnknown.
	fenceHeld, fenceTime = 1500 * time.Millisecond, 8 * time.Second
	// fenceHealth is after how long its host may find out, and kill it: in
	// time where the op can be repeated only then, and not at all where it is
	// cancelled.
	fenceHealth, fencePatience = 500, 600_000 // milliseconds
	// fenceRestart is how long a killed plugin stays away: the next transport
	// has the op ended by then.
	fenceRestart = 1000 // milliseconds
)

// Content numbers.
const (
	oldBytes uint64 = 1 + iota
	ownersBytes
)

// WRITE and READ are under way, and one plugin of the two is stopped with bytes
// of the op on their way into it. The other one is killed, or the op cancelled.
// What is not cancelled ends over the next transport. As soon as the op has ended
// the owner of its destination writes to that. Then, or at some time before, the
// stopped plugin is continued: nothing that it still does may touch the owner's
// bytes.
func TestMemoryAfterAnOpHasEndedItsDestinationIsTheOwners(t *testing.T) {
	over(t, hostCarriers, func(t *testing.T, c carrier) {
		for _, f := range []fenceCase{
			{name: "write, target stopped, source killed", kind: engine.Write, target: true},
			{name: "write, source stopped, target killed", kind: engine.Write},
			{name: "write, target stopped, cancelled", kind: engine.Write, target: true, cancel: true},
			{name: "read, reader stopped, source killed", kind: engine.Read},
			{name: "read, source stopped, reader killed", kind: engine.Read, target: true},
			{name: "read, reader stopped, cancelled", kind: engine.Read, cancel: true},
		} {
			t.Run(f.name, func(t *testing.T) {
				if !onHardware() { // whose devices count for all
					t.Parallel()
				}
				f.carrier = c
				f.run(t)
			})
		}
	})
}

// fenceCase is who is stopped, and how the op ends.
type fenceCase struct {
	carrier
	name   string
	kind   engine.OpKind
	target bool // the peer's plugin is stopped, not the submitter's
	cancel bool // the op is cancelled; otherwise the other plugin is killed

	here, there *node
	metrics     *prometheus.Registry // of here
	byNext      int                  // rounds whose op the next transport has ended
	local       *block
	remote      *block
	segment     *engine.Segment
}

func (f *fenceCase) run(t *testing.T) {
	open := func(name string, opts ...engine.Option) *node {
		cfg := f.config(t, name)
		cfg.Transfer.ChunkBytes = 256 << 10
		cfg.Plugins.HealthIntervalMS, cfg.Plugins.HealthTimeoutMS = 100, fenceHealth*int(slow)
		cfg.Plugins.RestartBackoffMS, cfg.Plugins.MaxRestartBackoffMS = fenceRestart, fenceRestart
		if f.cancel {
			cfg.Plugins.HealthTimeoutMS = fencePatience
			cfg.Transports = cfg.Transports[:1] // it need not end another way, and is not to go one
		}
		return f.open(t, cfg, opts...)
	}
	f.metrics = prometheus.NewRegistry()
	f.here, f.there = open("here", engine.WithMetrics(f.metrics)), open("there")
	f.local = f.mine(t, f.here, fenceBytes, engine.RegionOptions{})
	f.remote = f.theirs(t, f.there, fenceBytes, engine.RegionOptions{})
	f.segment = f.here.segment(t, f.there.address())
	source, destination := f.local.Bytes(), f.remote.Bytes()
	if f.kind == engine.Read {
		source, destination = destination, source
	}
	fill(source, oldBytes)
	owners := filled(fenceBytes, ownersBytes)
	rounds, missed, early := times(2, 50), 0, 0 // of four cases that end another way: 200 in the long form
	began := time.Now()                         // of a round
	for n := 0; n < rounds; {
		// In every other round it stays stopped until the op has ended, as
		// long as that may take.
		held := min(fenceHeld*slow, fenceTime)
		if n%2 == 1 {
			held = rand.N(held)
		}
		caught, err, after := f.round(t, held, func() { copy(destination, owners) })
		if !caught {
			// It went another way, while this one waits to be tried again.
			if missed++; time.Since(began) > 3*patience {
				t.Fatalf("bytes of the op were on their way into a stopped plugin in %d of %d attempts", n, n+missed)
			}
			continue
		}
		if !bytes.Equal(destination, owners) {
			t.Fatalf("round %d: old bytes came back after the op had ended (%v): %s", n, err, contents(destination))
		}
		switch {
		case f.cancel && !errors.Is(err, engine.Closed) && !errors.Is(err, engine.NotSent):
			t.Errorf("round %d: a cancelled op ended with %v", n, err)
		case !f.cancel && err != nil:
			t.Errorf("round %d: %v", n, err)
		}
		if after {
			early++
		}
		n, began = n+1, time.Now()
	}
	// RDMA's device may have done all of a cancelled op, and a real one all of any,
	// before its plugin can do as it is told.
	if done := f.carrier.name == "rdma" && (f.cancel || onHardware()); f.here.Stats().Fences == 0 && !done {
		t.Error("no fence in any round")
	} else if !f.cancel && f.byNext < rounds/2 && !done { // a new plugin may be there as early
		t.Errorf("%s has ended the op in only %d of %d rounds", f.next, f.byNext, rounds)
	}
	t.Logf("%d rounds, %d more in which nothing was caught; in %d the next transport has ended the op, in %d it had ended before the plugin was continued or killed",
		rounds, missed, f.byNext, early)
}

// round is one op. It reports whether bytes were caught in the stopped plugin,
// how the op ended, and whether that was while the plugin was stopped.
func (f *fenceCase) round(t *testing.T, stopped time.Duration, overwrite func()) (caught bool, err error, before bool) {
	t.Helper()
	here, there := f.upAt(t, f.here), f.upAt(t, f.there)
	defer here.release()
	defer there.release()
	until(t, f.carrier.name+" to be connected and to carry", func() bool {
		before := f.moved(t, f.carrier.name)
		if err := f.here.submit(t, whole(f.kind, f.local, f.segment, f.remote.Address())).Wait(briefly(t)); err != nil {
			t.Fatalf("%v; the plugins here %+v and there %+v", err, f.here.transport(t, f.carrier.name), f.there.transport(t, f.carrier.name))
		}
		return f.moved(t, f.carrier.name) > before
	})
	byNext := f.moved(t, f.next)
	victim, other := here, there
	if f.target {
		victim, other = there, here
	}
	there.stop(t)
	sent := packets(t)
	x := f.here.submit(t, whole(f.kind, f.local, f.segment, f.remote.Address()))
	enough := fenceCaught
	if f.kind == engine.Read {
		enough = 1 // requests are small
	}
	caught = f.await(t, x, there, enough, sent)
	if caught && !f.target {
		here.stop(t)
		if f.kind == engine.Read {
			there.signal(unix.SIGCONT)
			caught = f.await(t, x, here, fenceCaught, sent)
		}
	}
	if caught && f.cancel {
		x.Cancel()
	} else if caught {
		other.signal(unix.SIGKILL)
	}
	if !caught {
		stopped = 0
	}
	unknown := false
	owned := func() { // by the owner of the destination, unless it is still in use
		if unknown = errors.Is(x.Wait(briefly(t)), engine.OutcomeUnknown); !unknown {
			overwrite()
		}
	}
	select {
	case <-x.Done():
		before = !victim.gone()
		owned() // and then it is continued
	case <-time.After(stopped):
	}
	for _, h := range []held{victim, there, here} {
		h.signal(unix.SIGCONT)
	}
	if !before {
		select {
		case <-x.Done():
		case <-time.After(patience):
			t.Fatal("the op does not end")
		}
		owned()
	}
	err = x.Wait(briefly(t))
	if unknown && slow > 1 {
		t.Logf("stopped for too long: %v", err)
		until(t, "the op's memory to be free", func() bool { return f.here.Stats().Unresolved == 0 })
		caught = false
	}
	if caught && f.moved(t, f.next) > byNext {
		f.byNext++
	}
	until(t, "the stopped plugin to have read everything", func() bool { return victim.gone() || unread(victim.pid) == 0 })
	time.Sleep(fenceLate) // what is late may come now
	return caught, err, before
}

// await waits until enough of the op is on its way into a stopped plugin, or into
// its device since that had sent so many packets, and reports false if it went
// another way.
func (f *fenceCase) await(t *testing.T, x *engine.Transfer, into held, enough, sent int) bool {
	for began := time.Now(); time.Since(began) < patience; time.Sleep(pollEvery) {
		under := false
		switch {
		case f.carrier.name != "rdma":
			under = unread(into.pid) >= enough
		case onHardware():
			under = packets(t) >= sent+fencePackets
		default:
			under = time.Since(began) >= fenceGrace
		}
		if isDone(x) || into.gone() {
			return false
		}
		if under {
			return true
		}
	}
	return false
}

// moved is how many bytes of transfers a transport has moved.
func (f *fenceCase) moved(t *testing.T, transport string) (n float64) {
	t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "hawser_transfer_bytes_total" {
			continue
		}
		for _, m := range family.Metric {
			if m.Label[0].GetValue() == transport {
				n += m.Counter.GetValue()
			}
		}
	}
	return n
}

func isDone(x *engine.Transfer) bool {
	select {
	case <-x.Done():
		return true
	default:
		return false
	}
}

// upAt waits for the transport, and holds on to its process.
func (f *fenceCase) upAt(t *testing.T, n *node) (h held) {
	t.Helper()
	until(t, f.carrier.name+" to be up", func() bool {
		s := n.transport(t, f.carrier.name)
		if s.State != "up" {
			return false
		}
		var err error
		h, err = holdOn(s.PID)
		return err == nil
	})
	return h
}
