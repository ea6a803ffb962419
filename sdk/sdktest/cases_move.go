package sdktest

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// moveRegister: what was registered and forgotten leaves no descriptor and no
// mapping, also after it was used.
func moveRegister(r *rig) {
	m := r.memory(r.move.Local, 10_000)
	there := r.there(10_000)
	r.announce(r.a, there.remote())
	w, _ := r.connectMemory(r.a, r.b, 0)
	before := memfds()
	for range 3 {
		here := r.register(r.a, m, true)
		w.do(op(sdk.Read, here, 0, there, 0, 10_000), here, there)
		here.check("after a read")
		r.deregister(here)
		r.deregister(here)
	}
	if err := r.a.mo.Deregister(r.ctx(), sdk.Capability{1}); err != nil {
		r.Errorf("Deregister of an unknown region: %v", err)
	}
	if after := memfds(); !r.h.External && after > before {
		r.Errorf("%d descriptors and mappings of regions, %d before they were registered", after, before)
	}
}

func moveRegisterTwice(r *rig) {
	w, _, here, there := r.moving(1000)
	again := r.export(here.Memory, true)
	again.Capability, again.Base = here.Capability, here.Base
	before := memfds()
	if _, err := r.a.mo.Register(r.ctx(), again); !errors.Is(err, sdk.Busy) {
		r.Errorf("a second Register: %v, want %v", err, sdk.Busy)
	}
	if after := memfds(); !r.h.External && again.Kind == sdk.HostMemory && after >= before {
		r.Error("the file of a region that was refused is open")
	}
	w.do(op(sdk.Write, here, 1, there, 2, 900), here, there)
	there.check("after a write")
}

func moveRegisterKind(r *rig) {
	kind, _ := kindNotIn(r.move)
	reg := sdk.Region{
		Capability: sdk.Capability{1}, Kind: kind, Base: 1 << 20, Length: 4096, Writable: true, Allocation: 2 << 20,
		HandleKind: sdk.FabricHandle, Handle: make([]byte, sdk.HandleBytes),
	}
	if kind == sdk.HostMemory {
		reg = r.export(HostMemory(r, 4096), true)
	}
	if _, err := r.a.mo.Register(r.ctx(), reg); !errors.Is(err, sdk.Unsupported) {
		r.Errorf("Register of %v memory: %v, want %v", kind, err, sdk.Unsupported)
	}
}

// moveBytes: the right bytes come to the right place, and no others change.
func moveBytes(r *rig) {
	const size = 12_289
	w, _, here, there := r.moving(size)
	for _, c := range [][3]int{
		{0, 0, 1}, {size - 1, 0, 1}, {0, size - 1, 1}, {size - 1, size - 1, 1}, {1, 2, 3}, {4095, 4096, 1},
		{4096, 4095, 2}, {4095, 1, 4098}, {1, 4097, 8191}, {size - 4097, 3, 4097}, {0, 0, size}, {7, 7, 0},
	} {
		for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read} {
			if c[2] == 0 || c[2] > r.move.MaxOp {
				continue
			}
			w.do(op(kind, here, c[0], there, c[1], c[2]), here, there)
			here.check(kind.String())
			there.check(kind.String())
			here.fill()
		}
	}
}

// largest is how large an op the suite does: memory is not made of gigabytes.
func (r *rig) largest() int { return min(r.move.MaxOp, 8<<20) }

func moveSizes(r *rig) {
	most := r.largest()
	w, _, here, there := r.moving(most + 1)
	for _, n := range []int{1, 2, 3, 63, 64, 65, 511, 513, 4095, 4096, 4097, 65_535, 65_536, 65_537, 1<<20 + 1, most - 1, most} {
		if n < 1 || n > most {
			continue
		}
		w.do(op(sdk.Write, here, 1, there, 0, n), here, there)
		w.do(op(sdk.Read, here, 0, there, 1, n), here, there)
	}
	here.check("after all sizes")
	there.check("after all sizes")
	if most == r.move.MaxOp {
		w.refused("more bytes than MaxOp", op(sdk.Write, here, 0, there, 0, most+1), sdk.InvalidArgument)
		there.check("after an op beyond the limit")
	}
}

// moveKinds: every kind here with every kind there.
func moveKinds(r *rig) {
	w, _ := r.connectMemory(r.a, r.b, 0)
	for _, k := range r.move.Remote {
		m := r.h.memory(r, k, 5000)
		if m == nil {
			continue
		}
		there := r.register(r.b, m, true)
		r.announce(r.a, there.remote())
		for _, l := range r.move.Local {
			if m := r.h.memory(r, l, 5000); m != nil {
				here := r.register(r.a, m, true)
				w.do(op(sdk.Write, here, 3, there, 0, 4000), here, there)
				w.do(op(sdk.Read, here, 0, there, 100, 4900), here, there)
				here.check(l.String() + " from " + k.String())
				there.check(l.String() + " to " + k.String())
			}
		}
	}
}

func moveOutOfRange(r *rig) {
	const size = 5000
	w, _, here, there := r.moving(size)
	for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read} {
		for _, c := range [][3]int{{0, 1, size}, {1, 0, size}, {0, size, 1}, {size, 0, 1}, {0, size - 1, 2}, {size - 1, 0, 2}, {0, 1 << 40, 1}, {1 << 40, 0, 1}} {
			w.refused("a range beyond its region", op(kind, here, c[0], there, c[1], c[2]), sdk.InvalidArgument)
		}
		here.check("after ops out of range")
		there.check("after ops out of range")
	}
	w.do(op(sdk.Write, here, 0, there, 0, size), here, there)
	there.check("after a write")
}

func moveMalformed(r *rig) {
	w, _, here, there := r.moving(5000)
	good := op(sdk.Write, here, 0, there, 0, 100)
	w.do(good, here, there)
	with := func(edit func(o *sdk.Op)) []byte {
		o := good
		edit(&o)
		return o.Append(nil)
	}
	const end = 1<<64 - 1
	frames := map[string][]byte{
		"no bytes":       {},
		"too few bytes":  good.Append(nil)[:40],
		"too many bytes": append(good.Append(nil), 0),
		"no length":      with(func(o *sdk.Op) { o.Length = 0 }),
		"no kind":        with(func(o *sdk.Op) { o.Kind = 0 }),
		"another kind":   with(func(o *sdk.Op) { o.Kind = 4 }),
		"a wrap here":    with(func(o *sdk.Op) { o.LocalOffset = end }),
		"a wrap there":   with(func(o *sdk.Op) { o.RemoteOffset = end - 50 }),
		"a long length":  with(func(o *sdk.Op) { o.Length = end }),
		"unknown flags":  append([]byte{byte(sdk.Write), 0x80}, good.Append(nil)[2:]...),
		"no event":       append([]byte{byte(sdk.Write), 1}, good.Append(nil)[2:]...),
	}
	if !r.move.NeedsFlush {
		frames["a flush"] = with(func(o *sdk.Op) { o.Kind = sdk.Flush })
	}
	for what, frame := range frames {
		w.refusedFrame(what, frame, sdk.InvalidArgument)
	}
	here.check("after malformed ops")
	there.check("after malformed ops")
	w.do(op(sdk.Read, here, 0, there, 0, 5000), here, there)
	here.check("after a read")
}

func moveUnknownRegion(r *rig) {
	w, _, here, there := r.moving(1000)
	for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read} {
		o := op(kind, here, 0, there, 0, 100)
		o.Remote[3]++
		w.refused("an unknown region there", o, sdk.StaleCapability)
		o = op(kind, here, 0, there, 0, 100)
		o.Local[3]++
		w.refused("an unknown region here", o, sdk.StaleCapability)
		o.Local = sdk.Capability{}
		w.refused("no region here", o, sdk.StaleCapability)
		// Registered here is not announced here.
		o = op(kind, here, 0, here, 0, 100)
		w.refused("a region there that is here", o, sdk.StaleCapability)
	}
	w.do(op(sdk.Write, here, 0, there, 0, 1000), here, there)
	there.check("after a write")
}

// moveOtherProvider: a region is that of the peer that the endpoint leads to.
func moveOtherProvider(r *rig) {
	here, there := r.here(1000), r.there(1000)
	foreign := there.remote()
	foreign.Provider[0]++
	r.announce(r.a, foreign)
	w, _ := r.connectMemory(r.a, r.b, 0)
	w.refused("another peer's region", op(sdk.Write, here, 0, there, 0, 100), sdk.StaleCapability)
	there.check("after a write to another peer's region")
	r.announce(r.a, there.remote())
	w.do(op(sdk.Write, here, 0, there, 0, 1000), here, there)
	there.check("after a write")
}

func moveReadOnly(r *rig) {
	here := r.register(r.a, r.memory(r.move.Local, 1000), false)
	there := r.register(r.b, r.memory(r.move.Remote, 1000), false)
	mine, theirs := r.here(1000), r.there(1000)
	r.announce(r.a, there.remote())
	r.announce(r.a, theirs.remote())
	w, _ := r.connectMemory(r.a, r.b, 0)
	w.refused("a region here that is read-only", op(sdk.Read, here, 0, theirs, 0, 100), sdk.Refused)
	w.refused("a region there that is read-only", op(sdk.Write, mine, 0, there, 0, 100), sdk.Refused)
	w.do(op(sdk.Write, here, 0, theirs, 5, 900), here, theirs)
	w.do(op(sdk.Read, mine, 0, there, 5, 900), mine, there)
	for _, g := range []*region{here, there, mine, theirs} {
		g.check("in the end")
	}
}

// moveProviderChecks: the provider believes no one. What was announced as more
// than it is, is what it is.
func moveProviderChecks(r *rig) {
	const size = 4096
	here := r.here(size)
	there := r.there(size)
	constant := r.register(r.b, r.memory(r.move.Remote, size), false)
	beyond := func() []byte {
		b := make([]byte, 2048)
		if _, err := there.ReadAt(b, size); err != nil {
			return nil
		}
		return b
	}
	before := beyond()
	lie := there.remote()
	lie.Length += 2048
	r.announce(r.a, lie)
	lie = constant.remote()
	lie.Writable = true
	r.announce(r.a, lie)
	for _, c := range []struct {
		what string
		o    sdk.Op
	}{
		{"beyond the region", op(sdk.Write, here, 0, there, size, 1000)},
		{"over the region's end", op(sdk.Write, here, 0, there, size-100, 1000)},
		{"read beyond", op(sdk.Read, here, 0, there, size, 1000)},
		{"read-only", op(sdk.Write, here, 0, constant, 0, 1000)},
	} {
		w, _ := r.connectMemory(r.a, r.b, 0)
		here.fill()
		what := c.what
		w.notDone(what, c.o)
		for _, g := range []*region{here, there, constant} {
			g.check(what)
		}
		if !bytes.Equal(beyond(), before) {
			r.Errorf("%s: bytes behind the region were changed", what)
		}
		w.ep.Close()
		w.waitEnded()
	}
}

// moveByBase: descriptors of older peers have no capability.
func moveByBase(r *rig) {
	here, there := r.here(1000), r.there(1000)
	older := there.remote()
	older.Capability = sdk.Capability{}
	r.announce(r.a, older)
	w, _ := r.connectMemory(r.a, r.b, 0)
	o := op(sdk.Write, here, 0, there, 10, 900)
	o.Remote = sdk.Capability{}
	w.do(o, here, there)
	there.check("after a write by base")
	o.RemoteBase++
	w.refused("another base", o, sdk.StaleCapability)
}

// moveAnnounceReplaces: of two regions with one base the newer one counts.
func moveAnnounceReplaces(r *rig) {
	w, _, here, there := r.moving(1000)
	w.do(op(sdk.Write, here, 0, there, 0, 500), here, there)
	r.announce(r.a, there.remote())
	w.do(op(sdk.Write, here, 3, there, 0, 500), here, there)
	r.deregister(there)
	m := r.memory(r.move.Remote, 1000)
	reg := r.export(m, true)
	reg.Base = there.Base
	next := &region{Memory: m, Region: reg, r: r, at: r.b}
	next.fill()
	var err error
	if next.attrs, err = r.b.mo.Register(r.ctx(), reg); err != nil {
		r.Fatalf("Register of another region with the same base: %v", err)
	}
	again := next.remote()
	again.Version = 2
	r.announce(r.a, again)
	w.refused("a region that was replaced", op(sdk.Write, here, 0, there, 0, 100), sdk.StaleCapability)
	w.do(op(sdk.Write, here, 7, next, 0, 900), here, next)
	there.check("the one that was replaced")
	next.check("the one in its place")
}

func moveWithdraw(r *rig) {
	w, _, here, there := r.moving(r.loadSize())
	other := r.there(1000)
	r.announce(r.a, other.remote())
	for range 3 {
		stop := w.load(sdk.Write, here, there)
		r.withdraw(r.a, r.b, there.Capability)
		if r.move.NeedsFlush {
			time.Sleep(grace) // what is done may be on its way into the memory
		}
		there.stays("after Withdraw")
		if !stop() {
			r.Error("no op was done before")
		}
		w.drained()
		w.refused("a region that was withdrawn", op(sdk.Read, here, 0, there, 0, 100), sdk.StaleCapability)
		w.do(op(sdk.Write, here, 0, other, 0, 1000), here, other)
		r.announce(r.a, there.remote())
	}
	w.do(op(sdk.Write, here, 0, there, 5, 100), here, there)
	r.withdraw(r.a, r.b, sdk.Capability{})
	for _, g := range []*region{there, other} {
		w.refused("a region of a peer of which all was withdrawn", op(sdk.Write, here, 0, g, 0, 100), sdk.StaleCapability)
		g.check("in the end")
	}
	r.withdraw(r.a, r.b, sdk.Capability{})
	r.withdraw(r.a, r.b, there.Capability)
	r.withdraw(r.a, r.a, sdk.Capability{})
}

func moveDeregisterHere(r *rig) {
	w, _, here, there := r.moving(1000)
	other := r.here(1000)
	w.do(op(sdk.Write, here, 0, there, 0, 1000), here, there)
	r.deregister(here)
	for _, kind := range []sdk.OpKind{sdk.Read, sdk.Write} {
		w.refused("a region here that was forgotten", op(kind, here, 0, there, 0, 100), sdk.StaleCapability)
	}
	w.do(op(sdk.Read, other, 0, there, 0, 1000), other, there)
	for _, g := range []*region{here, other, there} {
		g.check("in the end")
	}
}

func moveDeregisterThere(r *rig) {
	w, _, here, there := r.moving(1000)
	w.do(op(sdk.Write, here, 0, there, 0, 1000), here, there)
	r.deregister(there)
	for _, kind := range []sdk.OpKind{sdk.Read, sdk.Write} {
		w, _ := r.connectMemory(r.a, r.b, 0)
		here.fill()
		w.notDone("a region there that was forgotten", op(kind, here, 0, there, 0, 100))
		here.check("after an op with a region that was forgotten")
		there.check("after an op with a region that was forgotten")
		w.ep.Close()
		w.waitEnded()
	}
}

// loadSize is the size of regions for load: what is under way at a time is not
// more than a slow machine moves in a second.
func (r *rig) loadSize() int {
	return min(r.largest(), r.move.InflightBytes/4, max(64<<10, 32<<20/r.move.Inflight))
}

func moveDeregisterLoaded(r *rig) {
	w, _, here, there := r.moving(r.loadSize())
	for range 3 {
		stop := w.load(sdk.Read, here, there)
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		r.within("Deregister with a context that has ended", func() {
			if err := here.at.mo.Deregister(ended, here.Capability); err != nil && !errors.Is(err, sdk.Busy) {
				r.Errorf("Deregister with a context that has ended: %v, want nil or %v", err, sdk.Busy)
			}
		})
		r.deregister(here)
		here.stays("after Deregister under load")
		if !stop() {
			r.Error("no op was done before")
		}
		w.drained()
		here = r.register(r.a, here.Memory, true)
	}
	w.do(op(sdk.Read, here, 0, there, 0, 1000), here, there)
	here.check("in the end")
}

func moveDeregisterThereLoaded(r *rig) {
	for range 3 {
		w, _, here, there := r.moving(r.loadSize())
		stop := w.load(sdk.Write, here, there)
		r.deregister(there)
		there.stays("after Deregister there under load")
		if !stop() {
			r.Error("no op was done before")
		}
		w.ep.Close()
		w.waitEnded()
	}
}

// moveManyInFlight: as many as there may be, each with its own bytes.
func moveManyInFlight(r *rig) {
	const piece, ops = 700, 1500
	w, _, here, there := r.moving(piece * ops)
	back := r.here(piece * ops)
	order := rand.New(rand.NewPCG(1, 1)).Perm(ops)
	for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read} {
		mine := here
		if kind == sdk.Read {
			mine = back
		}
		for i, k := range order {
			o := op(kind, mine, i*piece, there, k*piece, piece-k%3)
			w.post(o)
			did(o, mine, there)
		}
		w.drained()
		if kind == sdk.Write {
			w.flush(there)
		}
		mine.check(kind.String())
		there.check(kind.String())
	}
	if n := w.done(); n < 2*ops {
		r.Errorf("%d of %d ops are done", n, 2*ops)
	}
}
