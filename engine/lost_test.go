package engine

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// failHere ends the endpoint of a path at one engine only, as a device does whose
// queue pair fails: the other end's transport does not notice.
func (w *world) failHere(e *Engine, why error) (generation uint64) {
	w.t.Helper()
	x, p := pathOf(w.t, e, "fast")
	x.mu.Lock()
	ep := p.ep
	x.mu.Unlock()
	if ep == nil {
		w.t.Fatalf("%s has no endpoint", e.address)
	}
	ep.Ended(why)
	return ep.generation
}

// The receiver's end of an endpoint fails, and nothing tells the sender's
// transport. The receiver's engine does: what was given to the endpoint goes
// another way, and a new one is made, at once.
func TestThePeerIsToldOfALostEndpoint(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		time.Sleep(2 * reconnectMax)
		x, p := pathOf(t, a, "fast")
		x.mu.Lock()
		before := p.ep
		x.mu.Unlock()

		w.fast.CutBoth("a:1", "b:1", "p0") // what fails is silent
		d := w.notify(a, "b:1", "under way")
		synctest.Wait()
		if got := w.failHere(b, sdk.Errorf(sdk.Unavailable, "failed")); got != before.generation {
			t.Fatalf("generation %d failed at b, %d is a's", got, before.generation)
		}
		synctest.Wait()
		w.fast.HealBoth("a:1", "b:1", "p0")
		if err := w.wait(d); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if took := w.via(a, "b:1"); took != "fast/p0" {
			t.Errorf("the next one took %s", took)
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if !before.ended || !errors.Is(before.cause, errLostThere) {
			t.Errorf("the sender's end: ended %v, %v", before.ended, before.cause)
		}
		if n := w.fast.Endpoints("a:1"); n != 1 {
			t.Errorf("the transport has %d endpoints", n)
		}
		if p.lost != 0 {
			t.Error("what the peer told is told back")
		}
		if p.ep == nil || p.ep.generation <= before.generation || len(p.retiring) != 0 {
			t.Errorf("path %+v", p)
		}
	})
}

// Only the endpoint that is meant ends: not a later one of the path, nor one of
// another instance, however late or often the news come.
func TestNewsOfALostEndpointAreForThatOne(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.connected(a, b)
		w.failHere(b, sdk.Errorf(sdk.Unavailable, "failed"))
		time.Sleep(time.Second)
		_ = w.via(a, "b:1")
		synctest.Wait()
		connects := a.Stats().Connects
		xa, _ := pathOf(t, a, "fast")
		for range 5 { // the news is in whatever b tells
			xb, pb := pathOf(t, b, "fast")
			xb.mu.Lock()
			if list, _ := xb.publishedLocked(); pb.lost == 0 || len(list[slices.IndexFunc(list, isFast)].Lost) != 1 {
				t.Errorf("b publishes %+v", list)
			}
			b.transports.renew()
			xb.tellLocked()
			xb.mu.Unlock()
			time.Sleep(time.Second)
		}
		xa.mu.Lock()
		for i := range xa.remote.list { // of an instance that is no more
			for k := range xa.remote.list[i].Lost {
				xa.remote.list[i].Lost[k].Generation += 100
			}
			xa.remote.list[i].Instance++
		}
		xa.loseLocked()
		xa.mu.Unlock()
		if took := w.via(a, "b:1"); took != "fast/p0" {
			t.Errorf("over %s", took)
		}
		if got := a.Stats().Connects; got != connects {
			t.Errorf("%d connects because of old news", got-connects)
		}
	})
}

func isFast(t control.Transport) bool { return t.Name == "fast" }

// What a side ends itself, and the end of a plugin, which its successor tells,
// are no news.
func TestOtherEndsAreNotTold(t *testing.T) {
	for _, why := range []error{sdk.Closed, sdk.PluginExited, errLostThere} {
		run(t, func(w *world) {
			a, b := w.open("a:1"), w.open("b:1")
			defer w.shut(a, b)
			w.connected(a, b)
			w.failHere(b, why)
			if _, p := pathOf(t, b, "fast"); p.lost != 0 {
				t.Errorf("%v is told", why)
			}
		})
	}
}
