//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// A write that the target has taken, and does not carry out, is sent over the
// next transport; by then the target has ended the first, so that what it held
// never lands on what the owner writes later.
func TestAWriteIsFencedAtTheTargetBeforeItIsRepeated(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		for round := range 20 {
			w.fast.HoldWrites("b:1", true)
			fill(mine.Bytes(), byte(round))
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(theirs.Bytes(), filled(100, byte(round))) {
				t.Fatal("the write has not arrived")
			}
			fill(theirs.Bytes(), 200)
			w.fast.HoldWrites("b:1", false)
			time.Sleep(time.Minute)
			if !bytes.Equal(theirs.Bytes(), filled(100, 200)) {
				t.Fatalf("round %d: old bytes came back", round)
			}
		}
		if c := w.fast.Counters(); c.Held == 0 || c.Late != 0 {
			t.Errorf("%d writes were held, %d were late", c.Held, c.Late)
		}
		if a.stats.fences[fenceThere].Load() < 20 || b.stats.fences[fenceAnswered].Load() < 20 || a.stats.moves[moveStalled].Load() < 20 {
			t.Errorf("%+v", a.Stats())
		}
	})
}

// Without the peer's word the op is not repeated: it ends as OutcomeUnknown, and
// what it uses stays in use until the word comes.
func TestAnUnconfirmedFenceIsAnUnknownOutcome(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.RPC.RequestTimeoutMS = 3000
		w.configs["a:1"] = c
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil { // all is connected
			t.Fatal(err)
		}
		w.fast.HoldWrites("b:1", true)
		w.network.Silence("a:1", "b:1", true)
		moved := w.slow.Counters().Moved
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		x, err := a.Submit(ctx, []Op{{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}}, SubmitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.done(x); !errors.Is(err, OutcomeUnknown) || !errors.Is(err, DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took < 20*time.Second || took > 20*time.Second+settleOps+fenceTime+time.Second {
			t.Errorf("it took %v", took)
		}
		if n := w.slow.Counters().Moved - moved; n != 0 {
			t.Errorf("%d writes went another way", n)
		}
		if s := a.Stats(); s.Unresolved != 1 || s.OpsUnknown != 1 {
			t.Errorf("%+v", s)
		}
		short, stop := context.WithTimeout(context.Background(), time.Second)
		defer stop()
		if err := mine.Close(short); !errors.Is(err, Busy) || !strings.Contains(err.Error(), "ops with b:1 of unknown outcome (1)") {
			t.Errorf("close: %v", err)
		}
		w.network.Silence("a:1", "b:1", false)
		time.Sleep(time.Minute)
		if s := a.Stats(); s.Unresolved != 0 {
			t.Errorf("%+v", s)
		}
		if err := mine.Close(context.Background()); err != nil {
			t.Error(err)
		}
		w.fast.HoldWrites("b:1", false)
		time.Sleep(time.Second)
		if c := w.fast.Counters(); c.Late != 0 {
			t.Errorf("%d late writes", c.Late)
		}
	})
}

// undying is a transport whose Close lasts until it is let go: until then its
// instance is not gone.
type undying struct {
	sdk.Mover
	inner interface {
		sdk.Transport
		Done() <-chan struct{}
		Err() error
		Progress() uint64
	}
	letGo chan struct{}
}

func newUndying(t sdk.Transport) *undying {
	u := &undying{Mover: t.(sdk.Mover), letGo: make(chan struct{})}
	u.inner = t.(interface {
		sdk.Transport
		Done() <-chan struct{}
		Err() error
		Progress() uint64
	})
	return u
}

func (u *undying) Describe() sdk.Description { return u.inner.Describe() }
func (u *undying) Configure(ctx context.Context, c sdk.Config) (sdk.Setup, error) {
	return u.inner.Configure(ctx, c)
}
func (u *undying) Done() <-chan struct{} { return u.inner.Done() }
func (u *undying) Err() error            { return u.inner.Err() }
func (u *undying) Progress() uint64      { return u.inner.Progress() }
func (u *undying) Close(ctx context.Context) error {
	err := u.inner.Close(ctx)
	<-u.letGo
	return err
}

// undying gives an engine's fast transport's instances, one after the other.
func (w *world) undying(address string) func() *undying {
	var all []*undying
	c := w.configs[address]
	c.Transports = []TransportConfig{
		{Name: "fast", InProcess: func() sdk.Transport {
			w.mu.Lock()
			defer w.mu.Unlock()
			u := newUndying(w.fast.New(address))
			if all = append(all, u); len(all) > 1 {
				close(u.letGo) // only the first one does not die
			}
			return u
		}},
		{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New(address) }},
	}
	w.configs[address] = c
	return func() *undying {
		w.mu.Lock()
		defer w.mu.Unlock()
		return all[0]
	}
}

func (w *world) letGo(us ...func() *undying) {
	for _, u := range us {
		if x := u(); !isClosed(x.letGo) {
			close(x.letGo)
		}
	}
}

// A plugin that died is fenced once it is gone, not when its link is: its
// process may run on.
func TestALostPluginIsFencedWhenItIsGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		dies string // whose plugin
		kind OpKind
	}{
		{"reader's", "a:1", Read}, {"writer's", "a:1", Write}, {"target's", "b:1", Write},
	} {
		t.Run(tt.name, func(t *testing.T) {
			moving(t, func(w *world) {
				first := w.undying(tt.dies)
				a, b, mine, theirs, g, end := w.movers(100)
				defer end()
				defer w.letGo(first)
				if err := w.write(a, mine, theirs, g, 1); err != nil {
					t.Fatal(err)
				}
				w.fast.HoldWrites("b:1", true)
				w.fast.Delay("b:1", "a:1", "", time.Hour)
				ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
				defer cancel()
				fill(mine.Bytes(), 1)
				fill(theirs.Bytes(), 1)
				x, err := a.Submit(ctx, []Op{{Kind: tt.kind, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}}, SubmitOptions{})
				if err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if w.fast.Kill(tt.dies) == 0 {
					t.Fatal("nothing was killed")
				}
				time.Sleep(5 * time.Minute)
				if isClosed(x.Done()) || x.Progress().Bytes != 0 {
					t.Errorf("it was repeated although the process may run: %+v, %v", x.Progress(), x.Results())
				}
				w.letGo(first)
				if err := w.done(x); err != nil {
					t.Error(err)
				}
				if n := a.stats.fences[fenceWaited].Load() + b.stats.fences[fenceWaited].Load(); n == 0 {
					t.Error("nothing waited for a plugin to be gone")
				}
				w.fast.HoldWrites("b:1", false)
				w.fast.Delay("b:1", "a:1", "", 0)
			})
		})
	}
}

// What is under way when paths die arrives all the same, and whole.
func TestTransfersSurviveTheirPaths(t *testing.T) {
	moving(t, func(w *world) {
		c := w.configs["a:1"]
		c.Transfer.ChunkBytes, c.Transfer.OpBudget = 4096, 100
		c.PathHealth.ErrorThreshold = 1000
		w.configs["a:1"] = c
		const size = 32 * 4096
		a, _, mine, theirs, g, end := w.movers(size)
		defer end()
		w.fast.Delay("a:1", "b:1", "", 3*time.Millisecond)
		for round := range 30 {
			kind := []OpKind{Read, Write}[round%2]
			from, to := mine, theirs
			if kind == Read {
				from, to = theirs, mine
			}
			fill(from.Bytes(), byte(round))
			fill(to.Bytes(), byte(round)+100)
			x := w.submit(a, SubmitOptions{}, Op{Kind: kind, Local: mine, Segment: g, Address: theirs.Address(), Length: size})
			time.Sleep(time.Duration(round) * 100 * time.Microsecond)
			w.fast.End("a:1", "b:1", "")
			if err := w.done(x); err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			if !bytes.Equal(to.Bytes(), from.Bytes()) {
				t.Fatalf("round %d: other bytes arrived", round)
			}
		}
		if s := a.Stats(); s.Fences == 0 || s.ChunksRepeated == 0 {
			t.Errorf("%+v", s)
		}
	})
}

// passiveFake is a mover whose Accept waits, and whose endpoints end when told.
type passiveFake struct {
	sdk.Mover
	accepting chan struct{}
	goOn      chan struct{}
	closed    chan sdk.Handler
	h         sdk.Handler
}

func (f *passiveFake) Accept(_ context.Context, _ sdk.Target, _ []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	close(f.accepting)
	<-f.goOn
	f.h = h
	return f, nil, nil
}

func (f *passiveFake) Send([]sdk.Frame, bool) (int, error) { return 0, sdk.Closed }
func (f *passiveFake) Close()                              { f.closed <- f.h }

// A fence waits for an Accept that is under way, and its endpoint is ended; what
// is fenced is not accepted afterwards, whether or not it ever came.
func TestAFenceCoversWhatIsBeingAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{}
		e.ctx, e.cancel = context.WithCancel(context.Background())
		var gs gates
		gs.init(e)
		f := &passiveFake{accepting: make(chan struct{}), goOn: make(chan struct{}), closed: make(chan sdk.Handler, 2)}
		inst := &pluginhost.Instance{Mover: f, Description: sdk.Description{Name: "fast"}, Gone: make(chan struct{})}
		peer := Incarnation{1}
		target := sdk.Target{Peer: peer, Path: "p", Generation: 7}
		k := laneKey{"fast", "p", 0}
		replies := make(chan error, 1)
		go func() {
			_, err := gs.accept(context.Background(), inst, 1, target, nil)
			replies <- err
		}()
		<-f.accepting
		fenced := make(chan error, 1)
		go func() { fenced <- gs.fence(context.Background(), peer, k, 7) }()
		synctest.Wait()
		select {
		case err := <-fenced:
			t.Fatalf("fenced while accepting: %v", err)
		default:
		}
		close(f.goOn)
		if err := <-replies; !errors.Is(err, Busy) {
			t.Errorf("accepted although it is fenced: %v", err)
		}
		h := <-f.closed
		synctest.Wait()
		select {
		case err := <-fenced:
			t.Fatalf("fenced before its end: %v", err)
		default:
		}
		short, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := gs.fence(short, peer, k, 7); !errors.Is(err, Busy) {
			t.Errorf("a fence without its end: %v", err)
		}
		if err := gs.fence(context.Background(), peer, k, 9); err != nil {
			t.Errorf("a generation that never came: %v", err)
		}
		h.Ended(sdk.Closed)
		if err := <-fenced; err != nil {
			t.Error(err)
		}
		for _, late := range []uint64{1, 7, 8, 9} {
			target.Generation = late
			reply, err := gs.accept(context.Background(), inst, 1, target, nil)
			if err != nil || reply.Newest != 9 {
				t.Errorf("generation %d: %+v, %v", late, reply, err)
			}
		}
		e.cancel()
		e.tasks.Wait()
	})
}

// A plugin that does not die has the fence of its own endpoints wait, and not
// those of its successor's on the same lane.
func TestAFenceIsOfOneGeneration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Engine{}
		e.ctx, e.cancel = context.WithCancel(context.Background())
		var gs gates
		gs.init(e)
		peer, k := Incarnation{1}, laneKey{"fast", "p", 0}
		accept := func(generation uint64) (*passiveFake, chan struct{}) {
			f := &passiveFake{accepting: make(chan struct{}), goOn: closedChan, closed: make(chan sdk.Handler, 9)}
			gone := make(chan struct{})
			inst := &pluginhost.Instance{Mover: f, Description: sdk.Description{Name: "fast"}, Gone: gone}
			if _, err := gs.accept(context.Background(), inst, 1, sdk.Target{Peer: peer, Path: "p", Generation: generation}, nil); err != nil {
				t.Fatal(err)
			}
			return f, gone
		}
		fence := func(generation uint64) error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return gs.fence(ctx, peer, k, generation)
		}
		first, gone := accept(3)
		first.h.Ended(sdk.PluginExited) // its process may run on
		next, _ := accept(4)
		if err := fence(4); !errors.Is(err, Busy) {
			t.Errorf("fenced before its end: %v", err)
		}
		next.h.Ended(sdk.Closed)
		if err := fence(4); err != nil {
			t.Errorf("the lane can never be fenced again: %v", err)
		}
		if err := fence(3); !errors.Is(err, Busy) {
			t.Errorf("fenced although its plugin may run: %v", err)
		}
		close(gone)
		if err := fence(3); err != nil {
			t.Error(err)
		}
		e.cancel()
		e.tasks.Wait()
	})
}

// A generation that the peer has fenced, or seen, is passed over.
func TestGenerationsOfEndpointsForMemoryOnlyGrow(t *testing.T) {
	moving(t, func(w *world) {
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		client := a.memory.source(b.incarnation).a.client
		for _, transport := range []string{"fast", rpcFallbackName} {
			if err := client.Fence(context.Background(), control.FenceRequest{
				From: a.incarnation, To: b.incarnation, Transport: transport, Path: "p0", Generation: 41,
			}); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 100*time.Millisecond {
			t.Errorf("it took %v to catch up", took)
		}
		m := &a.memory.source(b.incarnation).mover
		m.mu.Lock()
		defer m.mu.Unlock()
		if got := m.lanes[laneKey{"fast", "p0", 0}].generation; got != 42 {
			t.Errorf("generation %d, want 42", got)
		}
		if err := client.Fence(context.Background(), control.FenceRequest{
			From: a.incarnation, To: Incarnation{15: 1}, Transport: "fast", Path: "p0", Generation: 41,
		}); !errors.Is(err, PeerRestarted) {
			t.Errorf("for another life: %v", err)
		}
	})
}
