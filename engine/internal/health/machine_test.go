package health

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-transport/hawser/sdk"
)

// peerMachine does anything with a Peers in any order, and holds what every
// step did against rules that do not look at how.
type peerMachine struct {
	p       *Peers
	now     time.Time
	silent  map[string]bool // as the events tell
	probing map[string]bool // as Due and Probed tell
}

func address(t *rapid.T) string {
	return string(rune('a' + rapid.IntRange(0, 7).Draw(t, "address")))
}

func drawOutcome(t *rapid.T) Outcome { return Outcome(rapid.IntRange(0, 4).Draw(t, "outcome")) }

func (m *peerMachine) heard(t *rapid.T, es []PeerEvent) {
	for _, e := range es {
		if (e.Kind == PeerSilent) == m.silent[e.Address] {
			t.Fatalf("%s of one whose silence is %v", told(es), m.silent[e.Address])
		}
		m.silent[e.Address] = e.Kind == PeerSilent
	}
}

func (m *peerMachine) call(t *rapid.T) {
	a, o := address(t), drawOutcome(t)
	began := m.now.Add(-time.Duration(rapid.IntRange(0, 30000).Draw(t, "took")) * ms)
	m.heard(t, m.p.Called(a, began, m.now, o))
	m.cleared(t, a, o)
}

// cleared: no mark outlives an answer.
func (m *peerMachine) cleared(t *rapid.T, a string, o Outcome) {
	if o != Answered && o != Gone {
		return
	}
	if ok, _ := m.p.Allow(a, m.now); !ok || m.p.Marked(a, m.now) || m.silent[a] {
		t.Fatalf("%s is marked after outcome %d", a, o)
	}
}

func (m *peerMachine) allow(t *rapid.T) {
	a := address(t)
	ok, until := m.p.Allow(a, m.now)
	if ok != until.IsZero() || !ok && (!m.silent[a] || !until.After(m.now)) {
		t.Fatalf("allowed %v until %s at %s, silent %v", ok, since(until), since(m.now), m.silent[a])
	}
}

func (m *peerMachine) due(t *rapid.T) {
	addresses, events := m.p.Due(m.now)
	m.heard(t, events)
	for _, a := range addresses {
		if m.probing[a] {
			t.Fatalf("%s is to be asked while it is being asked", a)
		}
		m.probing[a] = true
	}
	if len(m.probing) > m.p.maxProbes {
		t.Fatalf("%d probes", len(m.probing))
	}
	if next := m.p.Next(m.now); !next.IsZero() && !next.After(m.now) {
		t.Fatal("due again at once: the caller would spin")
	}
}

func (m *peerMachine) probed(t *rapid.T) {
	if len(m.probing) == 0 {
		return
	}
	var as []string
	for a := range m.probing {
		as = append(as, a)
	}
	slices.Sort(as)
	a, o := rapid.SampledFrom(as).Draw(t, "probe"), drawOutcome(t)
	delete(m.probing, a)
	m.heard(t, m.p.Probed(a, m.now, o))
	m.cleared(t, a, o)
}

func (m *peerMachine) check(t *rapid.T) {
	if len(m.p.marks) > m.p.maxMarks || len(m.p.probing) != len(m.probing) {
		t.Fatalf("%d marks, %d probes", len(m.p.marks), len(m.p.probing))
	}
	if next := m.p.Next(m.now); !next.IsZero() && next.Before(m.now) {
		t.Fatalf("next is %v ago", m.now.Sub(next))
	}
	for a, x := range m.p.marks {
		if (x.strikes > 0) != m.silent[a] {
			t.Fatalf("%s has %d strikes and silence %v", a, x.strikes, m.silent[a])
		}
		if x.strikes > 0 && x.until.Sub(m.now) > m.p.o.MaxCooldown {
			t.Fatalf("a cooldown ends %v from now", x.until.Sub(m.now))
		}
		if x.touched.After(m.now) || x.changed.After(m.now) {
			t.Fatalf("%s was touched in the future", a)
		}
	}
	for a, is := range m.silent {
		if is && m.p.marks[a] == nil {
			t.Fatalf("%s is silent without a mark", a)
		}
	}
}

func TestPeersHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &peerMachine{p: NewPeers(peerOptions()), now: start, silent: map[string]bool{}, probing: map[string]bool{}}
		m.p.maxMarks, m.p.maxProbes = 5, 3
		t.Repeat(map[string]func(*rapid.T){
			"call": m.call, "call again": m.call, "allow": m.allow, "due": m.due, "probed": m.probed,
			"ask": func(t *rapid.T) { m.heard(t, m.p.Ask(address(t), m.now)) },
			"wait": func(t *rapid.T) {
				most := rapid.SampledFrom([]int{100, 5000, 90000, 700000}).Draw(t, "most")
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, most).Draw(t, "wait")) * ms)
			},
			"back": func(t *rapid.T) { // a caller whose clock was read long ago
				m.p.Allow(address(t), m.now.Add(-time.Minute))
				m.p.Next(m.now.Add(-time.Minute))
			},
			"freeze": func(t *rapid.T) {
				from := m.now.Add(-time.Duration(rapid.IntRange(0, 1000).Draw(t, "before")) * ms)
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100000).Draw(t, "frozen")) * ms)
				m.heard(t, m.p.Rearm(from, m.now))
			},
			"": m.check,
		})
		// Whatever came before, nothing is left of what nobody wants.
		m.now = m.now.Add(m.p.o.MaxAge)
		m.due(t)
		if len(m.p.marks) != 0 {
			t.Fatalf("%d marks after max age", len(m.p.marks))
		}
		for a, is := range m.silent {
			if is {
				t.Fatalf("%s ended silent", a)
			}
		}
	})
}

// Calls that begin when they are allowed to and fail: the cooldowns are the
// sequence, for any settings.
func TestAnyCooldowns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := peerOptions()
		o.Cooldown = time.Duration(rapid.IntRange(1, 600000).Draw(t, "cooldown")) * ms
		o.MaxCooldown = o.Cooldown * time.Duration(rapid.IntRange(1, 100).Draw(t, "max"))
		o.MaxAge = time.Hour + o.MaxCooldown
		p, now, length := NewPeers(o), start, o.Cooldown
		for range 80 { // more than an int64 can be doubled
			began := now
			now = now.Add(time.Duration(rapid.IntRange(1, 30000).Draw(t, "took")) * ms)
			for range rapid.IntRange(1, 3).Draw(t, "calls") {
				p.Called("a", began, now, Silent)
			}
			ok, until := p.Allow("a", now)
			if ok || until.Sub(now) != length {
				t.Fatalf("a cooldown of %v, want %v", until.Sub(now), length)
			}
			length = min(2*length, o.MaxCooldown)
			now = until
		}
	})
}

// pathMachine is the like for a Paths.
type pathMachine struct {
	p      *Paths
	now    time.Time
	paused map[Key]bool // as the events tell
}

func drawKey(t *rapid.T) Key {
	return Key{sdk.Incarnation{byte(rapid.IntRange(1, 2).Draw(t, "peer"))}, "tcp", fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "path"))}
}

func (m *pathMachine) heard(t *rapid.T, es []PathEvent) {
	for _, e := range es {
		if (e.Kind == PathPaused) == m.paused[e.Key] {
			t.Fatalf("%s of one whose pause is %v", heard(es), m.paused[e.Key])
		}
		m.paused[e.Key] = e.Kind == PathPaused
	}
}

func (m *pathMachine) fail(t *rapid.T) {
	k := drawKey(t)
	f := Failure{
		Kind:     Kind(rapid.IntRange(0, 12).Draw(t, "kind")),
		Facts:    Facts{rapid.Bool().Draw(t, "answers"), rapid.Bool().Draw(t, "room"), rapid.Bool().Draw(t, "acked")},
		Began:    m.now.Add(-time.Duration(rapid.IntRange(0, 2000).Draw(t, "took")) * ms),
		Endpoint: rapid.Uint64Range(0, 9).Draw(t, "endpoint"),
	}
	was := m.p.PausedUntil(k, m.now)
	m.heard(t, m.p.Failed(k, f, m.now))
	until := m.p.PausedUntil(k, m.now)
	if !was.IsZero() && !until.Equal(was) {
		t.Fatal("an error during a pause changed it")
	}
	if !until.IsZero() && until.Sub(m.now) > m.p.o.MaxCooldown {
		t.Fatalf("paused for %v", until.Sub(m.now))
	}
}

func (m *pathMachine) due(t *rapid.T) {
	m.heard(t, m.p.Due(m.now))
	for k, is := range m.paused {
		if is != !m.p.PausedUntil(k, m.now).IsZero() {
			t.Fatalf("%v: told paused %v", k, is)
		}
	}
	if next := m.p.Next(m.now); !next.IsZero() && !next.After(m.now) {
		t.Fatal("due again at once: the caller would spin")
	}
}

func (m *pathMachine) check(t *rapid.T) {
	if len(m.p.paths) > m.p.max {
		t.Fatalf("%d paths", len(m.p.paths))
	}
	if next := m.p.Next(m.now); !next.IsZero() && next.Before(m.now) {
		t.Fatalf("next is %v ago", m.now.Sub(next))
	}
	for k, s := range m.p.paths {
		if s.paused != m.paused[k] || len(s.errors) >= m.p.o.ErrorThreshold || s.pauses < 0 {
			t.Fatalf("%v: %+v, told paused %v", k, s, m.paused[k])
		}
	}
	for k, is := range m.paused {
		if is && m.p.paths[k] == nil {
			t.Fatalf("%v is paused without a path", k)
		}
	}
}

func TestPathsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &pathMachine{p: NewPaths(pathOptions()), now: start, paused: map[Key]bool{}}
		m.p.max = 5
		t.Repeat(map[string]func(*rapid.T){
			"fail": m.fail, "fail again": m.fail, "fail once more": m.fail, "due": m.due,
			"succeed": func(t *rapid.T) {
				k := drawKey(t)
				m.heard(t, m.p.Succeeded(k, m.now.Add(ms)))
				if !m.p.PausedUntil(k, m.now).IsZero() || m.p.paths[k] != nil {
					t.Fatal("something is left after a success")
				}
			},
			"forget": func(t *rapid.T) { m.heard(t, m.p.Forget(drawKey(t))) },
			"wait": func(t *rapid.T) {
				most := rapid.SampledFrom([]int{100, 5000, 90000}).Draw(t, "most")
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, most).Draw(t, "wait")) * ms)
			},
			"freeze": func(t *rapid.T) {
				from := m.now.Add(-time.Duration(rapid.IntRange(0, 1000).Draw(t, "before")) * ms)
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 100000).Draw(t, "frozen")) * ms)
				m.heard(t, m.p.Rearm(from, m.now))
			},
			"": m.check,
		})
		// Pauses end by themselves.
		m.now = m.now.Add(m.p.o.MaxCooldown)
		m.due(t)
		for k, is := range m.paused {
			if is {
				t.Fatalf("%v ended paused", k)
			}
		}
	})
}
