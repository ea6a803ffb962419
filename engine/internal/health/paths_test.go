package health

import (
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func key(path string) Key { return Key{sdk.Incarnation{1}, "tcp", path} }

// refused is a refusal that came at once.
func refused(p *Paths, path string, s float64) string {
	return heard(p.Failed(key(path), Failure{Kind: Refused, Began: at(s - 0.001)}, at(s)))
}

func paused(t *testing.T, p *Paths, path string, s float64, until time.Time) {
	t.Helper()
	if got := p.PausedUntil(key(path), at(s)); !got.Equal(until) {
		t.Fatalf("%s at %v: paused until %s, want %s", path, s, since(got), since(until))
	}
}

func TestErrorsInTheWindowPause(t *testing.T) {
	for _, c := range []struct {
		name string
		at   []float64
		want string
	}{
		{"two", []float64{0, 1}, ""},
		{"three", []float64{0, 1, 2}, "paused a 32"},
		{"three in just the window", []float64{0, 5, 9.999}, "paused a 39.999"},
		{"three in more than it", []float64{0, 5, 10}, ""},
		{"the window slides", []float64{0, 5, 10, 14.9}, "paused a 44.9"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := NewPaths(pathOptions())
			for _, s := range c.at[:len(c.at)-1] {
				want(t, "before", refused(p, "a", s), "")
				paused(t, p, "a", s, time.Time{})
			}
			want(t, "last", refused(p, "a", c.at[len(c.at)-1]), c.want)
		})
	}
}

func TestThresholdOfOne(t *testing.T) {
	o := pathOptions()
	o.ErrorThreshold = 1
	want(t, "first", refused(NewPaths(o), "a", 0), "paused a 30")
}

func pause(t *testing.T, p *Paths, path string, s float64) {
	t.Helper()
	refused(p, path, s-0.2)
	refused(p, path, s-0.1)
	want(t, "third", refused(p, path, s), "paused "+path+" "+since(at(s+30)))
}

func TestPausesDouble(t *testing.T) {
	p := NewPaths(pathOptions())
	pause(t, p, "a", 1)
	now := 1.0
	for _, s := range []float64{30, 60, 120, 240, 300, 300} {
		end := now + s
		paused(t, p, "a", end-0.001, at(end))
		nextIs(t, p.Next(at(end-1)), at(end))
		want(t, "early", heard(p.Due(at(end-0.001))), "")
		paused(t, p, "a", end, time.Time{})
		want(t, "end", heard(p.Due(at(end))), "resumed a")
		want(t, "end again", heard(p.Due(at(end))), "")
		nextIs(t, p.Next(at(end)), time.Time{})
		// On probation one error is enough, however long after.
		now = end + 100
		if got := refused(p, "a", now); got == "" {
			t.Fatal("an error on probation does not pause")
		}
	}
	paused(t, p, "b", now, time.Time{})
	other := key("a")
	other.Peer[0]++
	if !p.PausedUntil(other, at(now)).IsZero() {
		t.Fatal("paused for another peer")
	}
}

func TestErrorsDuringAPauseDoNotCount(t *testing.T) {
	p := NewPaths(pathOptions())
	pause(t, p, "a", 1)
	for s := 2.0; s < 31; s++ {
		want(t, "during", refused(p, "a", s), "")
	}
	paused(t, p, "a", 30.9, at(31))
	// The end is told of even if nobody asked Due.
	want(t, "after", refused(p, "a", 31), "resumed a, paused a 91")
}

func TestSuccessClearsAll(t *testing.T) {
	p := NewPaths(pathOptions())
	want(t, "healthy", heard(p.Succeeded(key("a"), at(0))), "")
	refused(p, "a", 1)
	refused(p, "a", 2)
	want(t, "errors", heard(p.Succeeded(key("a"), at(2.5))), "")
	refused(p, "a", 3) // else the third
	paused(t, p, "a", 3, time.Time{})
	p.Succeeded(key("a"), at(3.5))

	pause(t, p, "a", 10)
	want(t, "during a pause", heard(p.Succeeded(key("a"), at(11))), "resumed a")
	paused(t, p, "a", 11, time.Time{})

	pause(t, p, "a", 20) // 30 s again, and after three errors
	p.Due(at(50))
	want(t, "on probation", heard(p.Succeeded(key("a"), at(51))), "")
	pause(t, p, "a", 60)
	// Of a pause whose end was not told of.
	want(t, "after a pause", heard(p.Succeeded(key("a"), at(91))), "resumed a")
	if len(p.paths) != 0 {
		t.Fatal("something is left")
	}
}

// The ack of a frame that was sent before the path went bad may come late.
func TestSuccessFromBeforeTheError(t *testing.T) {
	p := NewPaths(pathOptions())
	refused(p, "a", 1)
	p.Succeeded(key("a"), at(1))
	refused(p, "a", 2)
	p.Succeeded(key("a"), at(1.5))
	want(t, "third", refused(p, "a", 3), "paused a 33")
	want(t, "sent before the pause", heard(p.Succeeded(key("a"), at(2.9))), "")
	paused(t, p, "a", 3, at(33))
}

func TestEndpointsDeathCountsOnce(t *testing.T) {
	p := NewPaths(pathOptions())
	died := func(k Kind, endpoint uint64, s float64) string {
		return heard(p.Failed(key("a"), Failure{Kind: k, Began: at(0), Endpoint: endpoint}, at(s)))
	}
	for range 256 {
		want(t, "flushed", died(Flushed, 7, 1), "")
	}
	died(EndpointEnded, 7, 1)
	died(EndpointEnded, 7, 1.1)
	died(ConnectFailed, 7, 1.2)
	died(Refused, 7, 1.3)
	died(EndpointEnded, 6, 1.4) // an older one says nothing of now
	if n := len(p.paths[key("a")].errors); n != 1 {
		t.Fatalf("%d errors", n)
	}
	// Each endpoint's counts, though it began before the last error.
	want(t, "second", died(EndpointEnded, 8, 2), "")
	want(t, "third", died(EndpointEnded, 9, 3), "paused a 33")
}

func lost(p *Paths, sent, s float64, f Facts) string {
	return heard(p.Failed(key("a"), Failure{Kind: AckTimeout, Facts: f, Began: at(sent)}, at(s)))
}

var works = Facts{PeerAnswers: true, HasRoom: true, OtherAcked: true}

// The frames of one burst are overdue one after the other.
func TestBurstCountsOnce(t *testing.T) {
	p := NewPaths(pathOptions())
	for i := range 100 {
		want(t, "burst", lost(p, float64(i)*0.001, 0.2+float64(i)*0.001, works), "")
	}
	lost(p, 0.25, 0.45, works)
	want(t, "third round", lost(p, 0.46, 0.66, works), "paused a 30.66")
}

// An ack timeout does not hide the end of the endpoint that it was over.
func TestTimeoutThenEnd(t *testing.T) {
	p := NewPaths(pathOptions())
	for i, f := range []Failure{
		{Kind: AckTimeout, Facts: works, Began: at(1), Endpoint: 5},
		{Kind: EndpointEnded, Began: at(0), Endpoint: 5},
	} {
		p.Failed(key("a"), f, at(2+float64(i)))
	}
	if n := len(p.paths[key("a")].errors); n != 2 {
		t.Fatalf("%d errors", n)
	}
}

func TestWhatIsNotToBlame(t *testing.T) {
	p := NewPaths(pathOptions())
	for k := range Kind(255) {
		if Blame(k, Facts{}) {
			continue
		}
		for s := range 10 {
			want(t, "failed", heard(p.Failed(key("a"), Failure{Kind: k, Began: at(float64(s))}, at(float64(s)+0.5))), "")
		}
	}
	if len(p.paths) != 0 {
		t.Fatal("something is held of it")
	}
}

func TestBeganIsNowUnlessTold(t *testing.T) {
	p := NewPaths(pathOptions())
	p.Rearm(at(0), at(1))
	for s := range 3 {
		p.Failed(key("a"), Failure{Kind: Refused}, at(2+float64(s)))
	}
	paused(t, p, "a", 4, at(34))
}

// A new instance, at either end, is another plugin; a dead peer has no paths.
func TestForget(t *testing.T) {
	p := NewPaths(pathOptions())
	pause(t, p, "a", 1)
	pause(t, p, "b", 2)
	want(t, "instance", heard(p.Forget(key("a"))), "resumed a")
	want(t, "again", heard(p.Forget(key("a"))), "")
	pause(t, p, "a", 3)
	other := key("a")
	other.Peer[0]++
	p.Failed(other, Failure{Kind: Refused}, at(3))
	p.ForgetPeer(key("a").Peer)
	if len(p.paths) != 1 || p.paths[other] == nil {
		t.Fatalf("%d paths are left", len(p.paths))
	}
}

func TestTroubleIsForgotten(t *testing.T) {
	p := NewPaths(pathOptions())
	refused(p, "a", 1)
	p.Due(at(10.9))
	if len(p.paths) != 1 {
		t.Fatal("forgotten within the window")
	}
	p.Due(at(11))
	if len(p.paths) != 0 {
		t.Fatal("kept for nothing")
	}
	pause(t, p, "b", 20)
	p.Due(at(10000))
	if len(p.paths) != 1 {
		t.Fatal("a probation ended by itself")
	}
}

func TestPathsAreBounded(t *testing.T) {
	p := NewPaths(pathOptions())
	p.max = 3
	pause(t, p, "a", 1)
	pause(t, p, "b", 2)
	refused(p, "c", 3)
	refused(p, "d", 13) // c has nothing that counts any more
	if p.paths[key("c")] != nil || len(p.paths) != 3 {
		t.Fatal("the idle one stayed")
	}
	want(t, "the oldest", refused(p, "e", 14), "resumed a")
	if len(p.paths) != 3 {
		t.Fatalf("%d paths", len(p.paths))
	}
	if NewPaths(pathOptions()).max != MaxPaths {
		t.Fatal("no bound")
	}
}

func TestPathRearm(t *testing.T) {
	p := NewPaths(pathOptions())
	pause(t, p, "before", 1)
	pause(t, p, "twice", 2)
	refused(p, "errors", 40)
	p.Due(at(40))
	// Frozen from 41 to 45.
	refused(p, "errors", 45)
	refused(p, "twice", 45)
	pause(t, p, "new", 45.3)
	want(t, "rearm", heard(p.Rearm(at(41), at(45.3))), "resumed new, resumed twice")
	paused(t, p, "twice", 45.3, time.Time{})
	if n := len(p.paths[key("errors")].errors); n != 1 {
		t.Fatalf("%d errors", n)
	}
	want(t, "began before", heard(p.Failed(key("before"), Failure{Kind: Refused, Began: at(45.2)}, at(46))), "")
	want(t, "began after", refused(p, "before", 47), "paused before 107")
	want(t, "its second", refused(p, "twice", 48), "paused twice 108")
	want(t, "its first", refused(p, "new", 49), "")
	p.Rearm(at(50), at(50))
	if p.clock.thawed != at(45.3) {
		t.Fatal("an empty freeze")
	}
	want(t, "earlier pauses run on", heard(p.Rearm(at(80), at(90))), "")
	want(t, "their end", heard(p.Due(at(108))), "resumed before, resumed twice")
}

func TestPathTimeDoesNotGoBack(t *testing.T) {
	p := NewPaths(pathOptions())
	pause(t, p, "a", 10)
	p.Due(at(39))
	paused(t, p, "a", 41, time.Time{})
	paused(t, p, "a", 39, time.Time{})
	nextIs(t, p.Next(at(20)), at(41))
}
