//go:build linux

package engine

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// scripted is the active end of an endpoint of which the test makes the outcomes.
type scripted struct{ ch *channel }

func (s scripted) Send(frames []sdk.Frame, _ bool) (int, error) { return len(frames), nil }
func (s scripted) Close()                                       { s.ch.Ended(sdk.Errorf(sdk.Closed, "the endpoint is closed")) }

// given is what such an endpoint was given.
type given struct {
	ch *channel
	id uint64
}

func (g given) say(o sdk.Outcome, code sdk.Code) {
	g.ch.Completed([]sdk.Completion{{ID: g.id, Outcome: o, Code: code}})
	synctest.Wait()
}

func (g given) end() {
	g.ch.Ended(sdk.Errorf(sdk.Unavailable, "test: the endpoint has ended"))
	synctest.Wait()
}

// given is what endpoints have of the chunks of which is says so.
func (m *mover) given(is func(*chunk) bool) (list []given) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for ch := range m.channelsLocked() {
		for id, c := range ch.posted {
			if is(c) {
				list = append(list, given{ch, id})
			}
		}
	}
	return list
}

func (m *mover) flushes() []given { return m.given(func(c *chunk) bool { return c.flush != nil }) }

// flushing is a world with four endpoints that the test has the say of, whose
// writes have to be flushed, and a transfer of two ops under way: the first in
// two pieces, each over an endpoint of its own.
func flushing(t *testing.T, f func(w *world, m *mover, x *Transfer, piece func(op int, offset uint64) given)) {
	const size = 4096
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes = size
		w.configs["a:1"] = c
		w.fast = sdktest.NewFabric(sdktest.FabricOptions{
			Name: "fast", Moves: true, Move: sdk.MoveLimits{Parallel: 4, Inflight: 4, NeedsFlush: true, TargetWrites: true},
		})
		a, b, mine, theirs, g, end := w.movers(100 * size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", time.Millisecond)
		if err := w.write(a, mine, theirs, g, 100*size); err != nil {
			t.Fatal(err)
		}
		m := &a.memory.source(b.incarnation).mover
		m.mu.Lock()
		n := 0
		for ch := range m.channelsLocked() {
			ch.se = scripted{ch}
			n++
		}
		m.mu.Unlock()
		if n != 4 {
			t.Fatalf("%d endpoints", n)
		}
		x := w.submit(a, SubmitOptions{},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 2 * size},
			Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address() + 2*size, Length: size})
		synctest.Wait()
		f(w, m, x, func(op int, offset uint64) given {
			t.Helper()
			list := m.given(func(c *chunk) bool { return c.op != nil && c.op.index == op && c.span.Offset == offset*size })
			if len(list) != 1 {
				t.Fatalf("piece %d of op %d is at %d endpoints", offset, op, len(list))
			}
			return list[0]
		})
		m.mu.Lock()
		for ch := range m.channelsLocked() {
			m.closeLocked(ch)
		}
		m.mu.Unlock()
	})
}

// A flush that is over, in whichever way, whose ops have failed meanwhile: what
// has landed since of the others is flushed all the same.
func TestAFlushOfFailedOpsKeepsNoOthersWaiting(t *testing.T) {
	for name, over := range map[string]func(given){
		"done":  func(flush given) { flush.say(sdk.Done, 0) },
		"ended": given.end,
	} {
		t.Run(name, func(t *testing.T) {
			flushing(t, func(w *world, m *mover, x *Transfer, piece func(int, uint64) given) {
				first, second, other := piece(0, 0), piece(0, 1), piece(1, 0)
				if first.ch == second.ch || first.ch == other.ch {
					t.Fatal("the same endpoint")
				}
				for _, g := range []given{first, second, other} {
					g.say(sdk.Done, 0)
				}
				w.fast.CutBoth("a:1", "b:1", "") // none is connected anew
				defer w.fast.HealBoth("a:1", "b:1", "")
				m.mu.Lock()
				first.ch.blockedUntil = time.Now().Add(time.Minute) // the fourth endpoint takes it all
				m.mu.Unlock()
				for _, g := range []given{second, other} { // with their flushes
					g.end()
				}
				time.Sleep(time.Second) // they are fenced, and go another way
				piece(0, 1).say(sdk.NotPosted, sdk.Refused)
				piece(1, 0).say(sdk.Done, 0)
				flushes := m.flushes()
				if len(flushes) != 1 || flushes[0].ch != first.ch {
					t.Fatalf("flushes: %v", flushes)
				}
				over(flushes[0])
				if flushes = m.flushes(); len(flushes) != 1 || flushes[0].ch == first.ch {
					t.Fatalf("flushes of what has landed since: %v", flushes)
				}
				flushes[0].say(sdk.Done, 0)
				if err := w.done(x); !errors.Is(err, Refused) || x.Results()[1] != nil {
					t.Errorf("%v", err)
				}
			})
		})
	}
}

// An op that has failed, and of which something is under way yet, keeps no others
// waiting.
func TestAFailedOpKeepsNoOthersWaiting(t *testing.T) {
	flushing(t, func(w *world, m *mover, x *Transfer, piece func(int, uint64) given) {
		stuck := piece(0, 1)
		piece(1, 0).say(sdk.Done, 0)
		piece(0, 0).say(sdk.NotPosted, sdk.Refused)
		flushes := m.flushes()
		if len(flushes) != 1 {
			t.Fatalf("%d flushes", len(flushes))
		}
		flushes[0].say(sdk.Done, 0)
		if p := x.Progress(); p.Done != 1 || p.Failed != 0 {
			t.Errorf("%+v", p)
		}
		stuck.say(sdk.Done, 0)
		if err := w.done(x); !errors.Is(err, Refused) || x.Results()[1] != nil {
			t.Errorf("%v", err)
		}
	})
}
