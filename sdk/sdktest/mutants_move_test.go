package sdktest

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// moveMutant is a transport that moves memory with one defect, around the
// fabric's.
type moveMutant struct {
	sdk.Transport
	sdk.Mover
	d *moveDefect
}

// moveDefect changes what a moveMutant does. Unset ones change nothing.
type moveDefect struct {
	options    func(*FabricOptions)
	unfenced   bool
	describe   func(*sdk.Description)
	register   func(sdk.Mover, context.Context, sdk.Region) (sdk.Attributes, error)
	deregister func(sdk.Mover, context.Context, sdk.Capability) error
	announce   func(sdk.Mover, context.Context, sdk.RemoteRegion) error
	withdraw   func(sdk.Mover, context.Context, sdk.Incarnation, sdk.Capability) error
	close      func(sdk.Transport, context.Context) error
	target     func(*sdk.Target)
	accept     func(m sdk.Mover, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error)
	// op changes each op that the wrapped endpoint gets, and frame its bytes.
	op    func(*sdk.Op)
	frame func([]byte) []byte
	wrap  func(*mutantEnd)
}

func (m *moveMutant) Describe() sdk.Description {
	d := m.Transport.Describe()
	if m.d.describe != nil {
		m.d.describe(&d)
	}
	return d
}

func (m *moveMutant) Close(ctx context.Context) error {
	if m.d.close != nil {
		return m.d.close(m.Transport, ctx)
	}
	return m.Transport.Close(ctx)
}

func (m *moveMutant) Register(ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	if m.d.register != nil {
		return m.d.register(m.Mover, ctx, r)
	}
	return m.Mover.Register(ctx, r)
}

func (m *moveMutant) Deregister(ctx context.Context, c sdk.Capability) error {
	if m.d.deregister != nil {
		return m.d.deregister(m.Mover, ctx, c)
	}
	return m.Mover.Deregister(ctx, c)
}

func (m *moveMutant) Announce(ctx context.Context, r sdk.RemoteRegion) error {
	if m.d.announce != nil {
		return m.d.announce(m.Mover, ctx, r)
	}
	return m.Mover.Announce(ctx, r)
}

func (m *moveMutant) Withdraw(ctx context.Context, p sdk.Incarnation, c sdk.Capability) error {
	if m.d.withdraw != nil {
		return m.d.withdraw(m.Mover, ctx, p, c)
	}
	return m.Mover.Withdraw(ctx, p, c)
}

func (m *moveMutant) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	if m.d.target != nil {
		m.d.target(&t)
	}
	e := m.end(h)
	ep, err := m.Mover.Connect(ctx, t, x, e)
	return e.around(ep), err
}

func (m *moveMutant) Accept(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	if m.d.target != nil {
		t.Local, t.Peer = t.Peer, t.Local // as the other side sees it
		m.d.target(&t)
		t.Local, t.Peer = t.Peer, t.Local
	}
	e := m.end(h)
	accept := m.d.accept
	if accept == nil {
		accept = func(m sdk.Mover, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			return m.Accept(ctx, t, offer, h)
		}
	}
	ep, answer, err := accept(m.Mover, ctx, t, offer, e)
	return e.around(ep), answer, err
}

func (m *moveMutant) end(h sdk.Handler) *mutantEnd {
	e := (&mutant{d: defect{wrap: m.d.wrap}}).end(h)
	if m.d.op == nil && m.d.frame == nil {
		return e
	}
	send := e.send
	e.send = func(frames []sdk.Frame, more bool) (int, error) {
		frames = slices.Clone(frames)
		for i, f := range frames {
			if m.d.frame != nil {
				frames[i].Data = m.d.frame(f.Data)
			} else if o, err := sdk.ParseOp(f.Data); err == nil {
				m.d.op(&o)
				frames[i].Data = o.Append(nil)
			}
		}
		return send(frames, more)
	}
	return e
}

func moveMutantHarness(make func() moveDefect) Harness {
	d := make()
	opt := FabricOptions{Moves: true, Move: movingMost}
	if d.options != nil {
		d.options(&opt)
	}
	h := fabricWith(opt, true)
	h.Timeout = 5 * time.Second
	fabric := h.New
	h.New = func(t testing.TB) sdk.Transport {
		inner := fabric(t)
		inner.(*member).f.unfenced, inner.(*member).f.lax = d.unfenced, d.accept != nil
		return &moveMutant{inner, inner.(sdk.Mover), &d}
	}
	return h
}

// anyway makes a defect of those without a state.
func anyway(d moveDefect) func() moveDefect { return func() moveDefect { return d } }

// over is a context that has ended.
func over() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// shift moves what ops write, or read there, by a byte.
func shift(from int) func(o *sdk.Op) {
	return func(o *sdk.Op) {
		if o.Length >= uint64(from) && o.Length > 1 {
			o.Length--
			o.RemoteOffset++
		}
	}
}

// repeats takes a malformed op for the one before it.
func repeats() moveDefect {
	var good []byte
	return moveDefect{frame: func(b []byte) []byte {
		if _, err := movingMost.ParseOp(b); err != nil && good != nil {
			return good
		}
		good = slices.Clone(b)
		return b
	}}
}

var moveMutants = []struct {
	name  string
	finds string
	says  string
	d     func() moveDefect
}{
	{"too many lanes", "describe-is-valid", "Parallel 9", anyway(moveDefect{
		describe: func(d *sdk.Description) { d.Move.Parallel = 9 }})},
	{"a file is kept", "move-register", "descriptors and mappings", anyway(moveDefect{
		register: func(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
			keep(r.File)
			return m.Register(ctx, r)
		}})},
	{"registered twice", "move-register-twice", "a second Register: <nil>", anyway(moveDefect{
		register: func(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
			a, err := m.Register(ctx, r)
			if errors.Is(err, sdk.Busy) {
				return a, nil
			}
			return a, err
		}})},
	{"a refused file is kept", "move-register-twice", "that was refused is open", anyway(moveDefect{
		register: func(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
			f := keep(r.File)
			a, err := m.Register(ctx, r)
			if err == nil {
				_ = f.Close()
			}
			return a, err
		}})},
	{"every kind is taken", "move-register-unknown-kind", "Register of device memory", anyway(moveDefect{
		register: func(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
			if r.Kind == sdk.DeviceMemory {
				return nil, nil
			}
			return m.Register(ctx, r)
		}})},
	{"off by one", "move-bytes", "are wrong, from", anyway(moveDefect{op: shift(2)})},
	{"large ops are off by one", "move-sizes", "are wrong, from", anyway(moveDefect{op: shift(65_536)})},
	{"ops of any size", "move-sizes", "more bytes than MaxOp is done", anyway(moveDefect{
		op: func(o *sdk.Op) { o.Length = min(o.Length, 100_000) }})},
	{"off by one between kinds", "move-kinds", "are wrong, from", anyway(moveDefect{op: shift(2)})},
	{"ranges are cut", "move-out-of-range", "a range beyond its region is done", anyway(moveDefect{
		op: func(o *sdk.Op) {
			for _, offset := range []*uint64{&o.LocalOffset, &o.RemoteOffset} {
				if *offset+o.Length > 5000 {
					*offset, o.Length = 0, 1
				}
			}
		}})},
	{"malformed ops are others", "move-malformed", "is done", repeats},
	{"an unknown region is the last one", "move-unknown-region", "an unknown region there is done", func() moveDefect {
		var good sdk.Capability
		return moveDefect{
			announce: func(m sdk.Mover, ctx context.Context, r sdk.RemoteRegion) error {
				good = r.Capability
				return m.Announce(ctx, r)
			},
			op: func(o *sdk.Op) { o.Remote = good },
		}
	}},
	{"an unknown region here is the last one", "move-unknown-region", "an unknown region here is done", func() moveDefect {
		var good sdk.Capability
		return moveDefect{
			register: func(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
				if good.IsZero() {
					good = r.Capability
				}
				return m.Register(ctx, r)
			},
			op: func(o *sdk.Op) { o.Local = good },
		}
	}},
	{"providers are not told apart", "move-other-provider", "another peer's region is done", anyway(moveDefect{
		announce: func(m sdk.Mover, ctx context.Context, r sdk.RemoteRegion) error {
			r.Provider = sdk.Incarnation{1}
			return m.Announce(ctx, r)
		},
		target: func(t *sdk.Target) { t.Peer = sdk.Incarnation{1} },
	})},
	{"writable all", "move-read-only", "a region here that is read-only is done", anyway(moveDefect{register: registerWritable})},
	{"writable there", "move-read-only", "a region there that is read-only is done", anyway(moveDefect{
		register: registerWritable,
		announce: func(m sdk.Mover, ctx context.Context, r sdk.RemoteRegion) error {
			r.Writable = true
			return m.Announce(ctx, r)
		}})},
	{"the provider believes in ranges", "move-provider-checks", "bytes behind the region were changed", anyway(moveDefect{
		register: func(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
			r.Length += 2048
			return m.Register(ctx, r)
		}})},
	{"the provider believes in permissions", "move-provider-checks", "read-only: write of 1000 bytes is done", anyway(moveDefect{register: registerWritable})},
	{"bases mean nothing", "move-by-base", "want done", anyway(moveDefect{
		announce: func(m sdk.Mover, ctx context.Context, r sdk.RemoteRegion) error {
			if r.Capability.IsZero() {
				return nil
			}
			return m.Announce(ctx, r)
		}})},
	{"the first one stays", "move-announce-replaces", "want done", anyway(moveDefect{
		announce: func(m sdk.Mover, ctx context.Context, r sdk.RemoteRegion) error {
			if r.Version > 1 {
				return nil
			}
			return m.Announce(ctx, r)
		}})},
	{"nothing is withdrawn", "move-withdraw", "a region that was withdrawn", anyway(moveDefect{
		withdraw: func(sdk.Mover, context.Context, sdk.Incarnation, sdk.Capability) error { return nil }})},
	{"withdrawn without a wait", "move-withdraw", "after Withdraw", anyway(moveDefect{
		withdraw: func(m sdk.Mover, _ context.Context, p sdk.Incarnation, c sdk.Capability) error {
			_ = m.Withdraw(over(), p, c)
			return nil
		}})},
	{"nothing is forgotten", "move-deregister-here", "a region here that was forgotten", anyway(moveDefect{deregister: forgetNothing})},
	{"nothing is forgotten there", "move-deregister-there", "is done", anyway(moveDefect{deregister: forgetNothing})},
	{"forgotten without a wait", "move-deregister-under-load", "after Deregister under load", anyway(moveDefect{
		deregister: func(m sdk.Mover, _ context.Context, c sdk.Capability) error {
			_ = m.Deregister(over(), c)
			return nil
		}})},
	{"forgetting is deaf to its context", "move-deregister-under-load", "did not return", anyway(moveDefect{
		options: func(o *FabricOptions) { o.Move.MaxOp, o.Move.Inflight = 1000, 1 },
		deregister: func(m sdk.Mover, ctx context.Context, c sdk.Capability) error {
			if ctx.Err() != nil {
				time.Sleep(stuck)
			}
			return m.Deregister(ctx, c)
		}})},
	{"forgotten later", "move-deregister-there-under-load", "after Deregister there under load", anyway(moveDefect{
		deregister: func(m sdk.Mover, _ context.Context, c sdk.Capability) error {
			time.AfterFunc(20*time.Millisecond, func() { _ = m.Deregister(over(), c) })
			return nil
		}})},
	{"every op completes twice", "move-complete-exactly-once", "completed twice", anyway(moveDefect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) { e.h.Completed(append(slices.Clone(cs), cs...)) }
		}})},
	{"ops are lost", "move-complete-exactly-once", "waited", anyway(moveDefect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) {
				e.h.Completed(slices.DeleteFunc(cs, func(c sdk.Completion) bool { return c.ID == 700 }))
			}
		}})},
	{"one end ends all", "move-two-endpoints", "want done", func() moveDefect {
		var mu sync.Mutex
		var all []*mutantEnd
		return moveDefect{wrap: func(e *mutantEnd) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
			e.closes = func() {
				mu.Lock()
				defer mu.Unlock()
				for _, e := range all {
					e.inner.Close()
				}
			}
		}}
	}},
	{"both ways are off by one", "move-both-directions", "are wrong, from", anyway(moveDefect{op: shift(2)})},
	{"the passive end sends", "move-passive-end-sends-nothing", "an op of the passive end is done", anyway(moveDefect{
		accept: func(m sdk.Mover, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			h.(*mutantEnd).send = func(fs []sdk.Frame, _ bool) (int, error) {
				h.Completed([]sdk.Completion{{ID: fs[0].ID, Outcome: sdk.Done}})
				return 1, nil
			}
			return m.Accept(ctx, t, offer, h)
		}})},
	{"generations mean nothing", "move-generations-are-of-a-lane", "Connect of generation 999 after 1000", anyway(moveDefect{
		accept: func(m sdk.Mover, ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
			ep, answer, err := m.Accept(ctx, t, offer, h)
			if errors.Is(err, sdk.Refused) {
				return deadEnd{h}, nil, nil
			}
			return ep, answer, err
		}})},
	{"all lanes are one", "move-generations-are-of-a-lane", "Connect of another lane", anyway(moveDefect{
		target: func(t *sdk.Target) { t.Lane = 0 }})},
	{"flush does nothing", "move-flush", "after a flush", func() moveDefect {
		var write []byte
		return moveDefect{
			options: func(o *FabricOptions) { o.Move.NeedsFlush = true },
			frame: func(b []byte) []byte {
				if b[0] == byte(sdk.Flush) && write != nil {
					return write
				}
				write = slices.Clone(b)
				return b
			},
		}
	}},
	{"an end before the last read", "move-end-stops-reads", "after the end of an endpoint with reads", anyway(moveDefect{wrap: endsEarly})},
	{"no fence", "move-end-stops-writes-there", "after the end of the passive end", anyway(moveDefect{unfenced: true})},
	{"the peer's end goes unseen", "move-peer-closes", "waited", anyway(moveDefect{
		wrap: func(e *mutantEnd) {
			e.ended = func(err error) {
				if !errors.Is(err, sdk.Unavailable) {
					e.h.Ended(err)
				}
			}
		}})},
	{"closed before its ends", "move-transport-closes-under-load", "after Close under load", anyway(moveDefect{
		close: func(t sdk.Transport, _ context.Context) error {
			time.AfterFunc(20*time.Millisecond, func() { _ = t.Close(context.Background()) })
			return nil
		}})},
	{"frames on an endpoint for memory", "move-bytes", "were received on an endpoint for memory", anyway(moveDefect{
		wrap: func(e *mutantEnd) {
			e.completed = func(cs []sdk.Completion) {
				e.h.Completed(cs)
				e.h.Received([][]byte{{1}})
			}
		}})},
}

func forgetNothing(sdk.Mover, context.Context, sdk.Capability) error { return nil }

// keep opens a file once more, until the collector finds it.
func keep(f *os.File) *os.File {
	g, err := os.OpenFile(f.Name(), os.O_RDWR, 0)
	if err != nil {
		g, _ = os.Open(f.Name())
	}
	kept = append(kept, g)
	return g
}

// kept are the files of mutants.
var kept []*os.File

// registerWritable takes a region's file for writing, whatever it is open for.
func registerWritable(m sdk.Mover, ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	if r.File != nil && !r.Writable {
		f, err := os.OpenFile(r.File.Name(), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		_ = r.File.Close()
		r.File, r.Writable = f, true
	}
	return m.Register(ctx, r)
}

// endsEarly calls Ended when Close is called, and closes a little later.
func endsEarly(e *mutantEnd) {
	ended := func() bool { e.mu.Lock(); defer e.mu.Unlock(); return e.n > 0 }
	e.closes = func() {
		e.mu.Lock()
		first := e.n == 0
		e.n++
		e.mu.Unlock()
		if !first {
			return
		}
		inner := e.inner
		time.AfterFunc(time.Millisecond/2, func() { e.h.Ended(sdk.Closed) })
		time.AfterFunc(20*time.Millisecond, inner.Close)
	}
	e.completed = func(cs []sdk.Completion) {
		if !ended() {
			e.h.Completed(cs)
		}
	}
	e.ended = func(err error) {
		if !ended() {
			e.h.Ended(err)
		}
	}
}

// TestSuiteFindsMoveMutants: each defect turns the case red that is for it.
func TestSuiteFindsMoveMutants(t *testing.T) {
	t.Cleanup(func() {
		for _, f := range kept {
			_ = f.Close()
		}
	})
	found := map[string]bool{}
	for _, m := range moveMutants {
		found[m.finds] = true
		t.Run(m.name, func(t *testing.T) {
			rec := verdict(t, m.finds, moveMutantHarness(m.d))
			if !rec.Failed() {
				t.Fatalf("%s does not find it", m.finds)
			}
			if !strings.Contains(rec.log.String(), m.says) {
				t.Errorf("%s does not say %q:\n%s", m.finds, m.says, rec.log.String())
			}
		})
	}
	for _, c := range cases {
		if strings.HasPrefix(c.name, "move-") && !found[c.name] {
			t.Errorf("no mutant is for %s", c.name)
		}
	}
}

// TestSuiteSparesTheSoundMover: the frame that mutants hang in is no defect.
func TestSuiteSparesTheSoundMover(t *testing.T) {
	for _, c := range cases {
		h := moveMutantHarness(anyway(moveDefect{}))
		if !strings.HasPrefix(c.name, "move-") || c.reason(h, h.New(t).Describe()) != "" {
			continue
		}
		if rec := verdict(t, c.name, h); rec.Failed() {
			t.Errorf("%s: %s", c.name, rec.log.String())
		}
	}
}
