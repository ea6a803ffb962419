package health

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func TestCooldownsDouble(t *testing.T) {
	p := NewPeers(peerOptions())
	now := at(0)
	for i, s := range []float64{5, 10, 20, 40, 60, 60, 60} {
		allowed(t, p, "a", now, true)
		began := now
		now = now.Add(30 * time.Second)
		events := p.Called("a", began, now, Silent)
		if i == 0 {
			want(t, "first", told(events), "silent a 35")
		} else {
			want(t, "again", told(events), "")
		}
		end := now.Add(time.Duration(s * float64(time.Second)))
		if ok, until := p.Allow("a", now); ok || !until.Equal(end) {
			t.Fatalf("cooldown %d: allowed %v, until %s, want %s", i+1, ok, since(until), since(end))
		}
		allowed(t, p, "a", end.Add(-1), false)
		allowed(t, p, "b", end.Add(-1), true) // marks are per address
		now = end
	}
}

func TestAnswerClears(t *testing.T) {
	p := NewPeers(peerOptions())
	want(t, "of one not marked", told(p.Called("a", at(0), at(1), Answered)), "")
	if len(p.marks) != 0 {
		t.Fatal("a healthy peer is remembered")
	}
	for _, now := range []float64{10, 100} { // and the doubling begins anew
		want(t, "silence", told(p.Called("a", at(now), at(now+1), Silent)), "silent a "+since(at(now+6)))
		p.Called("a", at(now+6), at(now+7), Silent) // doubles
		allowed(t, p, "a", at(now+16), false)
		// One that began before the mark, too.
		want(t, "answer", told(p.Called("a", at(now), at(now+16), Answered)), "resumed a")
		allowed(t, p, "a", at(now+16), true)
		if p.Marked("a", at(now+16)) {
			t.Fatal("still marked")
		}
	}
	want(t, "second answer", told(p.Called("a", at(120), at(121), Answered)), "")
}

func TestConcurrentCallsDoubleOnce(t *testing.T) {
	p := NewPeers(peerOptions())
	for i := range 10 { // all began before the first failed
		p.Called("a", at(float64(i)*0.1), at(30+float64(i)*0.1), Silent)
	}
	allowed(t, p, "a", at(34.99), false)
	allowed(t, p, "a", at(35), true)
	for range 10 { // the cooldown is over: they wait together again
		p.Called("a", at(35), at(65), Silent)
	}
	allowed(t, p, "a", at(74.99), false)
	allowed(t, p, "a", at(75), true)
}

// A call that waited since before the peer came back tells nothing new when it
// fails afterwards.
func TestSilenceFromBeforeAnAnswer(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("a", at(0), at(10), Silent)
	p.Called("a", at(9), at(11), Answered)
	want(t, "late", told(p.Called("a", at(10), at(20), Silent)), "")
	allowed(t, p, "a", at(20), true)
	want(t, "new", told(p.Called("a", at(12), at(22), Silent)), "silent a 27")
}

func TestOutcomesThatSayNothing(t *testing.T) {
	p := NewPeers(peerOptions())
	want(t, "no verdict", told(p.Called("a", at(0), at(1), NoVerdict)), "")
	want(t, "unknown", told(p.Called("a", at(0), at(1), Outcome(99))), "")
	want(t, "never asked", told(p.Probed("a", at(1), Silent)), "")
	allowed(t, p, "a", at(1), true)
	p.Called("a", at(1), at(2), Silent)
	p.Called("a", at(7), at(8), NoVerdict)
	want(t, "never asked", told(p.Probed("a", at(8), Answered)), "")
	if !p.Marked("a", at(8)) {
		t.Fatal("cleared by nothing")
	}
}

func TestGoneIsNotSilent(t *testing.T) {
	p := NewPeers(peerOptions())
	want(t, "not marked", told(p.Called("a", at(0), at(1), Gone)), "")
	p.Called("a", at(1), at(2), Silent)
	want(t, "marked", told(p.Called("a", at(1), at(3), Gone)), "forgotten a")
	allowed(t, p, "a", at(3), true)
	p.Called("a", at(4), at(5), Silent)
	due(t, p, at(6), "a")
	want(t, "by the prober", told(p.Probed("a", at(6), Gone)), "forgotten a")
	if len(p.marks)+len(p.probing) != 0 {
		t.Fatal("something is left")
	}
}

func TestMarksExpireUntouched(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("a", at(0), at(0), Silent)
	p.Called("b", at(0), at(0), Silent)
	allowed(t, p, "b", at(4), false) // somebody wants it
	if !p.Marked("a", at(599.9)) || p.Marked("a", at(600)) {
		t.Fatal("a mark of a wrong age")
	}
	allowed(t, p, "a", at(600), true)
	due(t, p, at(600), "b")
	if p.marks["a"] != nil {
		t.Fatal("an expired mark is kept")
	}
	p.Probed("b", at(601), Silent) // the prober does not touch
	want(t, "b", told(due(t, p, at(604))), "forgotten b")
	nextIs(t, p.Next(at(604)), time.Time{})
	if len(p.marks)+len(p.probing) != 0 {
		t.Fatal("something is left")
	}
}

func TestExpiredMarkBeginsAnew(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("a", at(0), at(0), Silent)
	p.Called("a", at(5), at(6), Silent)
	want(t, "anew", told(p.Called("a", at(700), at(701), Silent)), "forgotten a, silent a 706")
}

func TestProbes(t *testing.T) {
	p := NewPeers(peerOptions())
	nextIs(t, p.Next(at(0)), time.Time{})
	p.Called("b", at(0), at(0.5), Silent)
	p.Called("a", at(0), at(1), Silent)
	due(t, p, at(1.4))
	nextIs(t, p.Next(at(1.4)), at(1.5))
	due(t, p, at(2), "b", "a") // overdue longest first
	due(t, p, at(3.1))         // under way
	nextIs(t, p.Next(at(3.1)), at(600.5))
	p.Probed("a", at(3.2), Silent)
	nextIs(t, p.Next(at(3.2)), at(3.2))
	due(t, p, at(3.2), "a")
	p.Probed("a", at(3.3), Silent)
	due(t, p, at(3.9))
	nextIs(t, p.Next(at(3.9)), at(4.2))
	want(t, "b", told(p.Probed("b", at(4), Answered)), "resumed b")
	allowed(t, p, "b", at(4), true)
	due(t, p, at(5), "a") // and b no more
}

// Callers read the clock before they take the lock.
func TestTimeDoesNotGoBack(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("a", at(0), at(10), Silent)
	p.Called("b", at(0), at(9), Silent)
	allowed(t, p, "b", at(14.9), false)
	nextIs(t, p.Next(at(3)), at(14.9))
	due(t, p, at(3), "a", "b")
}

// A mark may go and come back while its probe is under way.
func TestOneProbePerAddress(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("a", at(0), at(1), Silent)
	due(t, p, at(2), "a")
	p.Called("a", at(0), at(2), Answered)
	p.Called("a", at(2.1), at(2.2), Silent)
	due(t, p, at(9))
	p.Called("a", at(2.1), at(9), Gone)
	p.Called("a", at(9.1), at(9.2), Silent)
	due(t, p, at(20))
	// The old probe's silence is from before the mark.
	want(t, "old probe", told(p.Probed("a", at(20), Silent)), "")
	if p.marks["a"].strikes != 1 {
		t.Fatal("doubled by a probe from before the mark")
	}
	due(t, p, at(20), "a")
}

func TestProbesAreBounded(t *testing.T) {
	p := NewPeers(peerOptions())
	for i := range 2 * MaxProbes {
		p.Called(fmt.Sprintf("%04d", i), at(0), at(float64(i)*0.001), Silent)
	}
	first, _ := p.Due(at(2))
	if len(first) != MaxProbes || first[0] != "0000" || first[MaxProbes-1] != fmt.Sprintf("%04d", MaxProbes-1) {
		t.Fatalf("%d probes, from %s", len(first), first[0])
	}
	due(t, p, at(3))
	if next := p.Next(at(3)); next.Before(at(600)) {
		t.Fatalf("next at %s, while no more probes can start", since(next))
	}
	p.Probed("0007", at(3), NoVerdict)
	nextIs(t, p.Next(at(3)), at(3))
	due(t, p, at(3), fmt.Sprintf("%04d", MaxProbes)) // takes turns
}

// While the prober gets no answer no caller gets through, and each cooldown is
// the double of the one before.
func TestProberKeepsCallersOut(t *testing.T) {
	for _, takes := range []time.Duration{0, 2 * time.Second} { // unreachable; frozen
		p := NewPeers(peerOptions())
		p.Called("a", at(0), at(30), Silent)
		now, ends := at(30), []time.Time(nil)
		lengths := []time.Duration{p.marks["a"].until.Sub(now)}
		for ; now.Before(at(1800)); now = now.Add(100 * ms) {
			ends = slices.DeleteFunc(ends, func(end time.Time) bool {
				if end.After(now) {
					return false
				}
				strikes := p.marks["a"].strikes
				p.Probed("a", now, Silent)
				if m := p.marks["a"]; m.strikes != strikes {
					lengths = append(lengths, m.until.Sub(now))
				}
				return true
			})
			allowed(t, p, "a", now, false)
			addresses, _ := p.Due(now)
			for range addresses {
				ends = append(ends, now.Add(takes))
			}
		}
		for i, s := range []time.Duration{5, 10, 20, 40, 60, 60} {
			if lengths[i] != s*time.Second {
				t.Fatalf("cooldowns %v", lengths)
			}
		}
		if len(lengths) > 40 {
			t.Fatalf("%d cooldowns in half an hour", len(lengths))
		}
		// It comes back: the probe under way, or the next, is answered.
		if len(ends) == 0 {
			due(t, p, now.Add(time.Second), "a")
		}
		want(t, "back", told(p.Probed("a", now.Add(time.Second), Answered)), "resumed a")
		allowed(t, p, "a", now.Add(time.Second), true)
	}
}

func TestAsk(t *testing.T) {
	p := NewPeers(peerOptions())
	if p.Answers("a", at(0)) {
		t.Fatal("nobody was asked")
	}
	p.Ask("a", at(1))
	nextIs(t, p.Next(at(1)), at(1))
	due(t, p, at(1), "a")
	p.Ask("a", at(1.2))
	due(t, p, at(1.2)) // under way
	p.Probed("a", at(1.3), Answered)
	if !p.Answers("a", at(1.2)) || p.Answers("a", at(1.3)) {
		t.Fatal("an answer at a wrong time")
	}
	due(t, p, at(1.9)) // no more often than marked ones
	due(t, p, at(2), "a")
	p.Probed("a", at(2.1), Answered)
	due(t, p, at(9)) // asked no more
	p.Ask("a", at(10))
	due(t, p, at(10), "a")
	want(t, "silent", told(p.Probed("a", at(12), Silent)), "silent a 17")
	if p.Answers("a", at(0)) {
		t.Fatal("a marked peer answers")
	}
	allowed(t, p, "a", at(12), false)
	p.Ask("b", at(20))
	p.Called("a", at(12), at(20), Answered)
	due(t, p, at(620)) // nobody wanted them
	if len(p.marks) != 0 {
		t.Fatal("something is left")
	}
}

func TestDisabled(t *testing.T) {
	o := peerOptions()
	o.Enable = false
	p := NewPeers(o)
	want(t, "call", told(p.Called("a", at(0), at(1), Silent)), "")
	want(t, "ask", told(p.Ask("b", at(1))), "")
	allowed(t, p, "a", at(1), true)
	due(t, p, at(10))
	nextIs(t, p.Next(at(10)), time.Time{})
	if p.Marked("a", at(1)) || len(p.marks) != 0 {
		t.Fatal("marked")
	}
}

func TestMarksAreBounded(t *testing.T) {
	p := NewPeers(peerOptions())
	p.maxMarks = 4
	mark := func(address string, s float64) string {
		return told(p.Called(address, at(s), at(s), Silent))
	}
	for i, a := range []string{"a", "b", "c", "d"} {
		mark(a, float64(i))
	}
	p.Allow("a", at(4)) // wanted again
	p.Called("d", at(3), at(4), Answered)
	p.Ask("e", at(5)) // takes the place of one without a mark
	if p.marks["d"] != nil || p.marks["e"] == nil {
		t.Fatal("the one without a mark stayed")
	}
	want(t, "over one that is only asked", mark("f", 6), "silent f 11")
	want(t, "the oldest", mark("g", 7), "forgotten b, silent g 12")
	want(t, "asking evicts no mark", told(p.Ask("h", at(8))), "")
	if p.marks["h"] != nil {
		t.Fatal("more than the bound")
	}
	p.Called("f", at(602.5), at(602.5), Answered)
	want(t, "an expired one first", mark("i", 603), "forgotten c, silent i 608")
	if len(p.marks) != 4 {
		t.Fatalf("%d marks", len(p.marks))
	}
	if NewPeers(peerOptions()).maxMarks != MaxMarks {
		t.Fatal("no bound")
	}
}

func TestRearmVoidsWhatAFreezeDecided(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("old", at(0), at(10), Silent)
	p.Called("doubled", at(0), at(10), Silent)
	due(t, p, at(16), "doubled", "old")
	p.Probed("doubled", at(16), NoVerdict)
	p.Probed("old", at(16), NoVerdict)
	due(t, p, at(17), "doubled", "old")
	// Frozen from 18 to 100; who wakes first is a matter of chance.
	p.Called("doubled", at(16), at(100), Silent)
	want(t, "new", told(p.Called("new", at(17), at(100), Silent)), "silent new 105")
	want(t, "rearm", told(p.Rearm(at(18), at(100))), "forgotten new")
	allowed(t, p, "new", at(100), true)
	if m := p.marks["doubled"]; m.strikes != 1 || !m.until.Equal(at(105)) {
		t.Fatalf("strikes %d, until %s", m.strikes, since(m.until))
	}
	// What waited through the freeze and fails after it.
	want(t, "late call", told(p.Called("new", at(99), at(101), Silent)), "")
	want(t, "late probe", told(p.Probed("old", at(101), Silent)), "")
	allowed(t, p, "old", at(101), true) // its cooldown was over before
	want(t, "after it", told(p.Called("new", at(100), at(102), Silent)), "silent new 107")
}

func TestRearmStopsTheClock(t *testing.T) {
	p := NewPeers(peerOptions())
	p.Called("a", at(0), at(10), Silent)
	want(t, "rearm", told(p.Rearm(at(12), at(1012))), "")
	allowed(t, p, "a", at(1014.9), false)
	allowed(t, p, "a", at(1015), true)
	p.Rearm(at(1016), at(1016)) // nothing
	p.Rearm(at(1017), at(1016)) // nonsense
	want(t, "touched at 1015", told(due(t, p, at(1614.9), "a")), "")
	want(t, "age", told(due(t, p, at(1615))), "forgotten a")

	p = NewPeers(peerOptions())
	p.Called("b", at(0), at(10), Silent)
	p.Rearm(at(500), at(1500))
	if !p.Marked("b", at(1609.9)) || p.Marked("b", at(1610)) {
		t.Fatal("an age that ran through a freeze")
	}
	p = NewPeers(peerOptions())
	p.Called("c", at(0), at(10), Silent)
	p.Allow("c", at(1009))
	if p.Rearm(at(20), at(40)); p.marks["c"].touched.After(at(1009)) {
		t.Fatal("wanted in the future")
	}
}
