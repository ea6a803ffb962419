//go:build linux

package engine

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Regions that follow each other at one place, as transports hear of them.

// listening is a transport that notes what it is told of peers' regions.
type listening struct {
	*undying
	w    *world
	said []sdk.RemoteRegion
	// before, unless it is nil, is called before the transport hears of a region.
	before func(sdk.RemoteRegion)
}

func (l *listening) Announce(ctx context.Context, r sdk.RemoteRegion) error {
	l.w.mu.Lock()
	l.said = append(l.said, r)
	l.w.mu.Unlock()
	if l.before != nil {
		l.before(r)
	}
	return l.undying.Announce(ctx, r)
}

// versions returns those under which a region was announced.
func (l *listening) versions(c Capability, base uint64) (list []uint64) {
	l.w.mu.Lock()
	defer l.w.mu.Unlock()
	for _, r := range l.said {
		if r.Capability == c && r.Base == base {
			list = append(list, r.Version)
		}
	}
	return list
}

func (w *world) listening(address string) *listening {
	l := &listening{w: w}
	w.only(address, func(from sdk.Transport) sdk.Transport {
		l.undying = newUndying(from)
		close(l.letGo)
		return l
	})
	return l
}

// withoutCapabilities makes an engine's descriptor, until it changes, one of an
// older provider.
func (e *Engine) withoutCapabilities() {
	e.memory.mu.Lock()
	defer e.memory.mu.Unlock()
	e.memory.body = regexp.MustCompile(`"capability_id":"[0-9a-f]*",`).ReplaceAll(e.memory.bodyLocked(), nil)
}

// An op names a region without capability by its base: while one is under way,
// no transport hears of the next version, in which other memory may be there.
func TestTheNextVersionWaitsForTheOpsOfTheLast(t *testing.T) {
	for _, told := range []bool{true, false} {
		moving(t, func(w *world) {
			heard := w.listening("a:1")
			a, b := w.open("a:1"), w.open("b:1")
			defer w.giveUp()
			defer w.shut(a, b)
			const base = 1 << 40
			mine, theirs := w.region(a, 100, RegionOptions{}), w.regionAt(b, 100, base)
			b.withoutCapabilities()
			g := w.segment(a, "b:1")
			defer g.Close()
			if told {
				if err := w.write(a, mine, theirs, g, 1); err != nil {
					t.Fatal(err)
				}
			}
			s := a.memory.source(b.incarnation)
			first := s.desc.Version
			under := bufferKey{base: base, version: first}
			s.leases.Acquire(under) // as an op does
			b.memory.forget(a.incarnation)
			w.region(b, 100, RegionOptions{})
			b.withoutCapabilities()
			if err := g.Refresh(context.Background()); err != nil || s.desc.Version == first {
				t.Fatalf("no new version: %v", err)
			}
			x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: base, Length: 100})
			time.Sleep(3333 * time.Millisecond) // nothing else stirs just then
			if isClosed(x.Done()) || slices.Contains(heard.versions(Capability{}, base), s.desc.Version) {
				t.Errorf("told %v: announced: %v", told, heard.versions(Capability{}, base))
			}
			s.leases.Release(under)
			synctest.Wait()
			if !isClosed(x.Done()) {
				t.Errorf("told %v: nobody woke it", told)
			}
			if err := w.done(x); err != nil {
				t.Error(err)
			}
		})
	}
}

// A region without capability that a transport has heard of too late leaves the
// others of its provider: there is no withdrawal of it alone. With the provider's
// life all of them end.
func TestALateAnnouncementOfAnOlderProvider(t *testing.T) {
	moving(t, func(w *world) {
		const base = 1 << 40
		heard, letGo := w.listening("a:1"), make(chan struct{}, 2)
		heard.before = func(r sdk.RemoteRegion) {
			if r.Base == base {
				<-letGo
			}
		}
		a, b := w.open("a:1"), w.open("b:1")
		defer w.giveUp()
		defer w.shut(a, b)
		defer close(letGo)
		mine, one, two := w.region(a, 100, RegionOptions{}), w.regionAt(b, 100, base), w.regionAt(b, 100, 2*base)
		b.withoutCapabilities()
		g := w.segment(a, "b:1")
		defer g.Close()
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: one.Address(), Length: 100})
		synctest.Wait()
		x.Cancel()
		if err := w.done(x); len(heard.versions(Capability{}, base)) != 1 {
			t.Fatalf("not announced: %v", err)
		}
		w.region(b, 100, RegionOptions{})
		b.withoutCapabilities()
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := w.write(a, mine, two, g, 100); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // what is of the last version is withdrawn
		letGo <- struct{}{}
		synctest.Wait()
		if _, theirs := w.fast.Regions("a:1"); theirs != 2 {
			t.Errorf("the transport has %d regions", theirs)
		}
		x = w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: one.Address(), Length: 100})
		synctest.Wait()
		theOnly(t, a).die(sdk.Errorf(sdk.Unavailable, "test: its life is over"))
		if err := w.done(x); len(heard.versions(Capability{}, base)) != 2 {
			t.Fatalf("not announced again: %v", err)
		}
		synctest.Wait() // all that it has is taken back
		letGo <- struct{}{}
		synctest.Wait()
		if _, theirs := w.fast.Regions("a:1"); theirs != 0 {
			t.Errorf("the transport has %d regions of a life that is over", theirs)
		}
	})
}

// An op's region is announced as what it was in the descriptor that had it: the
// one that is at its place by now is in a later one, and is no other's successor
// within the same.
func TestARegionIsAnnouncedAsOfItsOwnVersion(t *testing.T) {
	moving(t, func(w *world) {
		heard := w.listening("a:1")
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		const base = 1 << 40
		old := w.regionAt(b, 100, base)
		if err := w.write(a, mine, theirs, g, 1); err != nil { // all is connected
			t.Fatal(err)
		}
		synctest.Wait() // a is told of the new region
		s := a.memory.source(b.incarnation)
		s.mu.Lock()
		o := &op{kind: Write, address: base, length: 100, local: mine}
		r, err := s.resolveLocked(o)
		o.take(r)
		s.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := old.Close(short); !errors.Is(err, Busy) {
			t.Fatalf("an op uses it: %v", err)
		}
		fresh := w.regionAt(b, 100, base)
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.mover.mu.Lock()
		s.mu.Lock()
		o.followLocked(s)
		s.announcedLocked(s.mover.lanes[laneKey{"fast", "p0", 0}], o, time.Now())
		s.mu.Unlock()
		s.mover.mu.Unlock()
		synctest.Wait()
		if err := w.write(a, mine, fresh, g, 100); err != nil {
			t.Error(err)
		}
		was, is := heard.versions(old.capability, base), heard.versions(fresh.capability, base)
		if len(was) != 1 || len(is) != 1 || was[0] != r.version || is[0] <= was[0] {
			t.Errorf("announced as of %v and %v, want %d and later", was, is, r.version)
		}
		s.leases.Release(r.key)
	})
}
