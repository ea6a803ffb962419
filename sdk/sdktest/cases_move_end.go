package sdktest

import (
	"errors"

	"github.com/hawser-transport/hawser/sdk"
)

// moveTwoEndpoints: those of two peers, and two lanes, do not disturb each
// other, and the end of one is that of one.
func moveTwoEndpoints(r *rig) {
	const size = 40_000
	first, _, here, there := r.moving(size)
	c := r.make("c")
	r.configure(c)
	theirs := r.register(c, r.memory(r.move.Local, size), true)
	r.announce(c, there.remote())
	second, _ := r.connectMemory(c, r.b, 0)
	ends := []*witness{first, second}
	from := []*region{here, theirs}
	for lane := 1; lane < r.move.Parallel; lane++ {
		w, _ := r.connectMemory(r.a, r.b, lane)
		ends, from = append(ends, w), append(from, here)
	}
	const piece = 100
	for i := range size / piece {
		w, mine := ends[i%len(ends)], from[i%len(ends)]
		o := op(sdk.Write, mine, i*piece, there, i*piece, piece)
		if w.post(o) == 0 {
			r.Fatalf("%s: it has ended: %v", w.name, w.waitEnded())
		}
		did(o, mine, there)
	}
	for _, w := range ends {
		w.drained()
		w.flush(there)
	}
	there.check("after writes over several endpoints")
	second.ep.Close()
	second.waitEnded()
	for i, w := range ends {
		if w != second {
			w.do(op(sdk.Read, here, i, there, 0, 1000), here, there)
		}
	}
	here.check("after the end of another endpoint")
}

func moveBothDirections(r *rig) {
	const size, piece = 50_000, 500
	mine, theirs := r.register(r.a, r.memory(r.both(), size), true), r.register(r.b, r.memory(r.both(), size), true)
	r.announce(r.a, theirs.remote())
	r.announce(r.b, mine.remote())
	there, _ := r.connectMemory(r.a, r.b, 0)
	back, _ := r.connectMemory(r.b, r.a, 0)
	// The lower half of each goes to the upper half of the other.
	for i := range size / 2 / piece {
		o := op(sdk.Write, mine, i*piece, theirs, size/2+i*piece, piece)
		there.post(o)
		did(o, mine, theirs)
		o = op(sdk.Write, theirs, i*piece, mine, size/2+i*piece, piece)
		back.post(o)
		did(o, theirs, mine)
	}
	for _, w := range []*witness{there, back} {
		w.drained()
	}
	there.flush(theirs)
	back.flush(mine)
	mine.check("after writes both ways")
	theirs.check("after writes both ways")
}

// both are the kinds that may be on either side.
func (r *rig) both() (kinds []sdk.MemoryKind) {
	for _, k := range r.move.Local {
		for _, o := range r.move.Remote {
			if k == o {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

func movePassiveSends(r *rig) {
	w, passive, here, there := r.moving(1000)
	r.announce(r.b, here.remote())
	o := op(sdk.Write, there, 0, here, 0, 100)
	n, err := passive.ep.Send([]sdk.Frame{{ID: passive.reserve(nil), Data: o.Append(nil)}}, false)
	if n == 1 && err == nil {
		if c := passive.result(1); c.Outcome != sdk.NotPosted {
			r.Errorf("an op of the passive end is %v (%v)", c.Outcome, c.Code)
		}
	} else {
		passive.unreserve(1)
	}
	here.check("after an op of the passive end")
	w.do(op(sdk.Read, here, 0, there, 0, 1000), here, there)
}

// moveGenerations: what is older on one lane may be the first on another, and
// frames have their own.
func moveGenerations(r *rig) {
	connect := func(use sdk.Use, lane int, generation uint64) error {
		at := r.attemptMemory(r.a, r.b, lane)
		at.target.Use, at.target.Generation = use, generation
		return at.run(r.ctx())
	}
	if err := connect(sdk.UseMemory, 0, 1000); err != nil {
		r.Fatalf("Connect: %v", err)
	}
	// Either side may be the one that refuses.
	if err := connect(sdk.UseMemory, 0, 999); !errors.Is(err, sdk.Refused) {
		r.Errorf("Connect of generation 999 after 1000: %v, want %v", err, sdk.Refused)
	}
	if r.move.Parallel > 1 {
		if err := connect(sdk.UseMemory, 1, 998); err != nil {
			r.Errorf("Connect of another lane: %v", err)
		}
	}
	if r.desc.Has(sdk.FeatureNotify) {
		if err := connect(sdk.UseFrames, 0, 997); err != nil {
			r.Errorf("Connect for frames: %v", err)
		}
	}
}

func moveFlush(r *rig) {
	w, _, here, there := r.moving(9000)
	for i := range 20 {
		o := op(sdk.Write, here, i, there, 2*i, 8000)
		if c := w.result(w.post(o)); c.Outcome != sdk.Done {
			r.Errorf("a write is %v (%v)", c.Outcome, c.Code)
		}
		did(o, here, there)
		w.flush(there)
		there.check("after a flush")
	}
	o := sdk.Op{Kind: sdk.Flush, Remote: there.Capability, Length: 1}
	o.Remote[5]++
	w.refused("a flush of an unknown region", o, sdk.StaleCapability)
}

// moveEndStopsReads: once Ended was called, the endpoint writes nothing to its
// regions any more, whatever was under way.
func moveEndStopsReads(r *rig) {
	here, there := r.here(r.loadSize()), r.there(r.loadSize())
	r.announce(r.a, there.remote())
	for range 5 {
		w, _ := r.connectMemory(r.a, r.b, 0)
		stop := w.load(sdk.Read, here, there)
		w.ep.Close()
		w.waitEnded()
		here.stays("after the end of an endpoint with reads")
		if !stop() {
			r.Error("no op was done before")
		}
	}
}

// moveEndStopsWrites: once the passive end's Ended was called, nothing is
// written there for that endpoint. That is what a fence relies on.
func moveEndStopsWrites(r *rig) {
	here, there := r.here(r.loadSize()), r.there(r.loadSize())
	r.announce(r.a, there.remote())
	for i := range 6 {
		w, passive := r.connectMemory(r.a, r.b, 0)
		stop := w.load(sdk.Write, here, there)
		if i%2 == 0 {
			// The side that sends is gone before, as when an engine has given
			// up an op and asks for the fence.
			w.ep.Close()
			w.waitEnded()
		}
		passive.ep.Close()
		passive.waitEnded()
		there.stays("after the end of the passive end of an endpoint with writes")
		if !stop() {
			r.Error("no op was done before")
		}
		w.waitEnded()
	}
}

func movePeerCloses(r *rig) {
	w, passive, here, there := r.moving(1000)
	w.do(op(sdk.Write, here, 0, there, 0, 1000), here, there)
	passive.ep.Close()
	w.waitEnded()
	passive.wantEnd(sdk.Closed)
	if id := w.post(op(sdk.Write, here, 0, there, 0, 10)); id != 0 {
		r.Error("an op was taken after the end")
	}
	// The next one works.
	w, passive = r.connectMemory(r.a, r.b, 0)
	here.fill()
	w.do(op(sdk.Write, here, 0, there, 0, 1000), here, there)
	there.check("over the next endpoint")
	w.ep.Close()
	w.wantEnd(sdk.Closed)
	passive.waitEnded()
}

// moveTransportCloses: after Close nothing of the transport touches memory, or
// holds it.
func moveTransportCloses(r *rig) {
	for _, active := range []bool{true, false} {
		local, remote := r.memory(r.move.Local, r.loadSize()), r.memory(r.move.Remote, r.loadSize())
		before := memfds()
		here, there := r.register(r.a, local, true), r.register(r.b, remote, true)
		r.announce(r.a, there.remote())
		w, passive := r.connectMemory(r.a, r.b, 0)
		kind, closed, watch := sdk.Read, r.a, here
		if !active {
			kind, closed, watch = sdk.Write, r.b, there
		}
		stop := w.load(kind, here, there)
		r.close(closed)
		if active || r.move.TargetWrites {
			watch.stays("after Close under load")
		}
		if !stop() {
			r.Error("no op was done before")
		}
		w.waitEnded()
		passive.waitEnded()
		r.deregister(map[bool]*region{true: there, false: here}[active])
		if after := memfds(); !r.h.External && after > before {
			r.Errorf("%d descriptors and mappings of regions after Close, %d before", after, before)
		}
		if active {
			r.a = r.successor(r.a)
		}
	}
}
