//go:build linux

package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// next is the next event of a subscription, or none's.
func (w *world) next(s *Subscription) (ev Event) {
	select {
	case ev = <-s.C():
	case <-time.After(time.Minute):
	}
	return ev
}

// A region whose Close waits is told of once, and that it is over.
func TestAHeldRegionIsTold(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		s := b.Events(context.Background())
		w.fast.HoldWrites("b:1", true)
		x := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100})
		w.slow.HoldWrites("b:1", true)
		synctest.Wait()
		closed := make(chan error, 1)
		first, giveUp := context.WithCancel(context.Background())
		go func() { closed <- theirs.Close(first) }()
		time.Sleep(heldFor - time.Millisecond)
		if got := told(s); len(got) != 0 {
			t.Errorf("%q", got)
		}
		time.Sleep(time.Second)
		ev := w.next(s)
		if ev.Kind != RegionHeld || ev.Region != theirs.Capability().Short() || !errors.Is(ev.Err, Busy) || !strings.Contains(ev.Err.Error(), "consumer a:1") {
			t.Errorf("%+v", ev)
		}
		giveUp()
		if err := <-closed; !errors.Is(err, Busy) {
			t.Errorf("%v", err)
		}
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := theirs.Close(short); !errors.Is(err, Busy) {
			t.Errorf("%v", err)
		}
		if got := told(s); len(got) != 0 {
			t.Errorf("told once more: %q", got)
		}
		go func() { closed <- theirs.Close(context.Background()) }()
		w.fast.HoldWrites("b:1", false)
		w.slow.HoldWrites("b:1", false)
		_ = w.done(x)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		if got := told(s); !slices.Equal(got, []string{"region released "}) {
			t.Errorf("%q", got)
		}
		// One that was given up is told of then, and one that is not held not at all.
		next := w.region(b, 1, RegionOptions{})
		if err := g.Refresh(context.Background()); err != nil {
			t.Fatal(err)
		}
		w.network.Silence("b:1", "a:1", true)
		brief, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		if err := next.Close(brief); !errors.Is(err, Busy) {
			t.Error(err)
		}
		w.network.Silence("b:1", "a:1", false)
		if err := next.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := w.region(b, 1, RegionOptions{}).Close(context.Background()); err != nil {
			t.Error(err)
		}
		if got := told(s); !slices.Equal(slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "peer") }), []string{"region held ", "region released "}) {
			t.Errorf("%q", got)
		}
	})
}

// refuser registers nothing.
type refuser struct {
	sdk.Transport
	sdk.Mover
	code *atomic.Value
}

func (r refuser) Register(context.Context, sdk.Region) (sdk.Attributes, error) {
	return nil, sdk.Errorf(r.code.Load().(sdk.Code), "no memory can be pinned")
}

// A transport that refuses regions is told of once for each instance; one that
// does not move such memory is not.
func TestARefusedRegionIsTold(t *testing.T) {
	moving(t, func(w *world) {
		var code atomic.Value
		code.Store(sdk.Unsupported)
		log := &lines{}
		w.logs = map[string]*lines{"a:1": log}
		w.configs["a:1"] = Config{Transports: []TransportConfig{
			{Name: "strict", InProcess: func() sdk.Transport {
				n := w.fast.New("a:1")
				return refuser{n, n.(sdk.Mover), &code}
			}},
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }},
		}}
		a := w.open("a:1")
		defer w.giveUp()
		defer w.shut(a)
		s := a.Events(context.Background())
		w.region(a, 1, RegionOptions{})
		if got := told(s); len(got) != 0 {
			t.Errorf("%q", got)
		}
		code.Store(Busy)
		first := w.region(a, 1, RegionOptions{})
		w.region(a, 1, RegionOptions{})
		ev := w.next(s)
		if ev.Kind != RegionRefused || ev.Transport != "strict" || ev.Region != first.Capability().Short() || !errors.Is(ev.Err, Busy) {
			t.Errorf("%+v", ev)
		}
		if got := told(s); len(got) != 0 || log.count("region refused") != 1 {
			t.Errorf("%q", got)
		}
		if err := a.RestartTransport(context.Background(), "strict"); err != nil {
			t.Error(err)
		}
		got := told(s)
		if slices.Sort(got); !slices.Equal(got, []string{"region refused strict", "transport down strict", "transport up strict"}) {
			t.Errorf("%q", got)
		}
	})
}

// Ops of unknown outcome are told of once for a peer, and that they are over.
func TestUnresolvedTransfersAreTold(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		s := a.Events(context.Background())
		w.fast.HoldWrites("b:1", true)
		w.network.Silence("a:1", "b:1", true)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		op := Op{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 50}
		x, err := a.Submit(ctx, []Op{op, op}, SubmitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.done(x); !errors.Is(err, OutcomeUnknown) || a.Stats().Unresolved != 2 {
			t.Fatalf("%v, %+v", err, a.Stats())
		}
		var told []Event
		see := func() {
			for len(s.C()) > 0 {
				if ev := <-s.C(); ev.Kind == TransfersUnresolved || ev.Kind == TransfersResolved {
					told = append(told, ev)
				}
			}
		}
		see()
		if len(told) != 1 || told[0].Kind != TransfersUnresolved || told[0].Address != "b:1" || told[0].Peer.Incarnation != b.incarnation || !errors.Is(told[0].Err, OutcomeUnknown) {
			t.Errorf("%+v", told)
		}
		if n := a.memory.unresolvedTo("b:1"); n != 2 || a.memory.unresolvedTo("c:1") != 0 {
			t.Errorf("%d ops are unresolved", n)
		}
		short, stop := context.WithTimeout(context.Background(), heldFor+time.Second)
		defer stop()
		says(t, mine.Close(short), []Code{Busy}, []string{"held by ops with b:1 of unknown outcome (2)"}, []string{"transport"})
		w.network.Silence("a:1", "b:1", false)
		w.fast.HoldWrites("b:1", false)
		time.Sleep(time.Minute)
		see()
		if len(told) != 2 || told[1].Kind != TransfersResolved || a.Stats().Unresolved != 0 {
			t.Errorf("%+v", told)
		}
	})
}
