//go:build linux

package engine

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// actor is the active end of an endpoint that takes everything; the test says
// what becomes of it. It ends once it was closed and may.
type actor struct {
	ch  *channel
	may chan struct{}
}

// act puts an actor in the place of the endpoint of a's lane over fast.
func (w *world) act(m *mover) *actor {
	w.t.Helper()
	m.mu.Lock()
	x := &actor{m.lanes[laneKey{"fast", "p0", 0}].ch, make(chan struct{})}
	var was *understudy
	if x.ch != nil {
		if was, _ = x.ch.se.(*understudy); was != nil {
			x.ch.se = x
		}
	}
	m.mu.Unlock()
	if was == nil {
		w.t.Fatal("not connected")
	}
	was.off.Store(true)
	was.Close()
	return x
}

// stage is a transport whose endpoints for memory actors can take the place of.
type stage struct{ *undying }

func (s stage) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	u := &understudy{Handler: h}
	ep, err := s.undying.Connect(ctx, t, x, u)
	if err != nil {
		return nil, err
	}
	u.Endpoint = ep
	return u, nil
}

// understudy is an endpoint and its handler; once it is off its end is nobody's.
type understudy struct {
	sdk.Endpoint
	sdk.Handler
	off atomic.Bool
}

func (u *understudy) Ended(err error) {
	if !u.off.Load() {
		u.Handler.Ended(err)
	}
}

func (x *actor) Send(frames []sdk.Frame, _ bool) (int, error) { return len(frames), nil }

func (x *actor) Close() {
	<-x.may
	x.ch.Ended(sdk.Errorf(sdk.Closed, "the endpoint is closed"))
}

// has returns what was posted and has no outcome, oldest first.
func (x *actor) has() (ids []uint64) {
	x.ch.m.mu.Lock()
	defer x.ch.m.mu.Unlock()
	for id := range x.ch.posted {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// all gives all of it an outcome.
func (x *actor) all(o sdk.Outcome, code sdk.Code) {
	var cs []sdk.Completion
	for _, id := range x.has() {
		cs = append(cs, sdk.Completion{ID: id, Outcome: o, Code: code})
	}
	x.ch.Completed(cs)
}

// acted is moving with one transport, over which a write was done.
func acted(t *testing.T, limits sdk.MoveLimits, f func(w *world, m *mover, op Op, submit func(...Op) *Transfer)) {
	moving(t, func(w *world) {
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{Name: "fast", Moves: true, Move: limits})
		w.only("a:1", func(t sdk.Transport) sdk.Transport {
			u := newUndying(t)
			close(u.letGo)
			return stage{u}
		})
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if slices.Contains(limits.Local, sdk.DeviceMemory) {
			mine.region.Kind = sdk.DeviceMemory
		}
		op := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}
		submit := func(ops ...Op) *Transfer { return w.submit(a, SubmitOptions{}, ops...) }
		if err := w.done(submit(op)); err != nil {
			t.Fatal(err)
		}
		f(w, &a.memory.source(b.incarnation).mover, op, submit)
	})
}

// Pieces that a transport could not take a moment ago pause its lane for a
// moment, however many there were before the last one that went well, and
// however many there are at a time.
func TestRefusalsDoNotAddUp(t *testing.T) {
	acted(t, sdk.MoveLimits{}, func(w *world, m *mover, op Op, submit func(...Op) *Transfer) {
		x := w.act(m)
		defer close(x.may)
		for range 10 {
			time.Sleep(time.Minute)
			var ops []Op
			for range 10 {
				ops = append(ops, op)
			}
			some := submit(ops...)
			synctest.Wait()
			if len(x.has()) != len(ops) {
				t.Fatalf("%d are posted", len(x.has()))
			}
			x.all(sdk.NotPosted, sdk.Busy)
			synctest.Wait()
			if len(x.has()) != 0 {
				t.Fatal("the lane is not paused")
			}
			time.Sleep(2 * reconnectMin)
			synctest.Wait()
			if len(x.has()) != len(ops) {
				t.Errorf("%d are posted after the pause", len(x.has()))
				time.Sleep(2 * laneRetry)
			}
			x.all(sdk.Done, 0)
			if err := w.done(some); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A lane that refuses whatever it is given is left alone longer each time.
func TestALaneThatTakesNothing(t *testing.T) {
	acted(t, sdk.MoveLimits{}, func(w *world, m *mover, op Op, submit func(...Op) *Transfer) {
		x := w.act(m)
		defer close(x.may)
		tries := 0
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			some := submit(op)
			synctest.Wait()
			if len(x.has()) > 0 {
				tries++
				x.all(sdk.NotPosted, sdk.Unavailable)
			}
			some.Cancel()
		}
		if tries < 3 || tries > 10 {
			t.Errorf("it was tried %d times in 10 s", tries)
		}
	})
}

// An endpoint that is to end may have to wait for an application's event. The ops
// of others do not.
func TestACancelledOpThatWaitsHoldsUpNobody(t *testing.T) {
	both := []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory}
	acted(t, sdk.MoveLimits{Local: both}, func(w *world, m *mover, op Op, submit func(...Op) *Transfer) {
		for range 5 { // each of them has a life of its own, and its lane no fault
			x := w.act(m)
			waits := op
			waits.Event = &[sdk.EventBytes]byte{1}
			defer close(x.may)
			some := submit(waits)
			synctest.Wait()
			if len(x.has()) != 1 {
				t.Fatal("it was not posted")
			}
			some.Cancel()
			time.Sleep(2 * settleOps)
			began := time.Now()
			if err := w.done(submit(op)); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 2*reconnectMin {
				t.Errorf("another op took %v", took)
			}
			if isClosed(some.Done()) || !x.ch.closing {
				t.Error("the first one has ended, or its endpoint goes on")
			}
		}
	})
}

// One whose peer is gone has to wait likewise, and its path is to blame.
func TestABrokenEndpointThatWaitsHoldsUpNobody(t *testing.T) {
	both := []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory}
	acted(t, sdk.MoveLimits{Local: both}, func(w *world, m *mover, op Op, submit func(...Op) *Transfer) {
		x := w.act(m)
		defer close(x.may)
		waits := op
		waits.Event = &[sdk.EventBytes]byte{1}
		some, other := submit(waits), submit(op)
		synctest.Wait()
		x.ch.Completed([]sdk.Completion{{ID: x.has()[1], Outcome: sdk.NotPosted, Code: sdk.Closed}})
		began := time.Now()
		if err := w.done(other); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 2*reconnectMin {
			t.Errorf("another op took %v", took)
		}
		m.mu.Lock()
		next := m.lanes[laneKey{"fast", "p0", 0}].ch
		m.mu.Unlock()
		errors := &m.s.e.stats.of("fast").errors[0]
		before := errors.Load()
		x.ch.Ended(sdk.Errorf(sdk.Unavailable, "the connection broke"))
		synctest.Wait()
		if next == x.ch || errors.Load() != before+1 {
			t.Errorf("%d errors of the path", errors.Load()-before)
		}
		if err := w.done(some); err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if l := m.lanes[laneKey{"fast", "p0", 0}]; l.ch != next || l.failures != 0 {
			t.Error("the end of the old one was taken for the new one's")
		}
	})
}

// What falls due between the pump's last look and the timer, while this process
// does not run, has its timer.
func TestWhatFallsDueAfterTheLastLook(t *testing.T) {
	acted(t, sdk.MoveLimits{NeedsFlush: true}, func(w *world, m *mover, op Op, submit func(...Op) *Transfer) {
		x := w.act(m)
		defer close(x.may)
		some := submit(op)
		synctest.Wait()
		x.all(sdk.Done, 0) // it has landed, and its flush is posted
		synctest.Wait()
		m.mu.Lock()
		m.refusedLocked(x.ch.takeLocked(x.ch.last), sdk.Backpressure)
		looked := time.Now()
		if len(m.fillLocked(looked)) != 0 {
			t.Error("the flush is posted at once")
		}
		m.mu.Unlock()
		time.Sleep(2 * retryTransport)
		m.mu.Lock()
		m.armLocked(looked)
		m.mu.Unlock()
		time.Sleep(2 * retryTransport)
		synctest.Wait()
		if len(x.has()) != 1 {
			t.Fatal("the flush was forgotten")
		}
		x.all(sdk.Done, 0)
		if err := w.done(some); err != nil {
			t.Error(err)
		}
	})
}
