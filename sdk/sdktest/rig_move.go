package sdktest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// region is memory that was registered with an instance, and what it has to
// hold.
type region struct {
	Memory
	sdk.Region // without a file
	r          *rig
	at         *peer
	attrs      sdk.Attributes
	want       []byte
}

// memory makes memory of the first of these kinds that there is.
func (r *rig) memory(kinds []sdk.MemoryKind, size int) Memory {
	r.Helper()
	for _, k := range kinds {
		if m := r.h.memory(r, k, size); m != nil {
			return m
		}
	}
	r.Skip("the harness makes no memory of the kinds that this case needs")
	return nil
}

// export makes a region of memory, with a new capability, and a base that
// nothing else has.
func (r *rig) export(m Memory, writable bool) sdk.Region {
	r.Helper()
	reg, err := m.Export(writable)
	if err != nil {
		r.Fatalf("Memory.Export: %v", err)
	}
	if _, err := rand.Read(reg.Capability[:]); err != nil {
		r.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bases++
	reg.Base = r.bases << 32
	return reg
}

// register registers memory with an instance and fills it.
func (r *rig) register(at *peer, m Memory, writable bool) *region {
	r.Helper()
	reg := r.export(m, writable)
	g := &region{Memory: m, Region: reg, r: r, at: at}
	g.File = nil
	g.fill()
	var err error
	if g.attrs, err = at.mo.Register(r.ctx(), reg); err != nil {
		if r.h.OnlyWritable && !writable && errors.Is(err, sdk.Unsupported) {
			r.Skipf("no read-only memory on this machine: %v", err)
		}
		r.Fatalf("Register of %d bytes of %v memory at %s: %v", reg.Length, reg.Kind, at.name, err)
	}
	return g
}

func (r *rig) here(size int) *region {
	r.Helper()
	return r.register(r.a, r.memory(r.move.Local, size), true)
}

func (r *rig) there(size int) *region {
	r.Helper()
	return r.register(r.b, r.memory(r.move.Remote, size), true)
}

// fill gives the region other bytes, as its application does.
func (g *region) fill() {
	g.r.Helper()
	g.r.mu.Lock()
	g.r.fills++
	seed := g.r.fills
	g.r.mu.Unlock()
	g.want = payload(seed, int(g.Length))
	if _, err := g.WriteAt(g.want, 0); err != nil {
		g.r.Fatalf("Memory.WriteAt: %v", err)
	}
}

// check compares what the region holds with what it has to.
func (g *region) check(when string) {
	g.r.Helper()
	got := make([]byte, len(g.want))
	if _, err := g.ReadAt(got, 0); err != nil {
		g.r.Fatalf("Memory.ReadAt: %v", err)
	}
	if bytes.Equal(got, g.want) {
		return
	}
	first, n := -1, 0
	for i := range got {
		if got[i] != g.want[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	g.r.Errorf("%s: %d bytes of the region of %d at %s are wrong, from %d on", when, n, len(got), g.at.name, first)
}

// stays fails the case if the region's bytes change, now or in a moment.
func (g *region) stays(when string) {
	g.r.Helper()
	g.fill()
	time.Sleep(grace) // nothing may happen meanwhile
	g.check(when)
}

// remote is what a region's descriptor says.
func (g *region) remote() sdk.RemoteRegion {
	return sdk.RemoteRegion{
		Provider: g.at.inc, Instance: g.at.cfg.Instance, Capability: g.Capability, Kind: g.Kind, Base: g.Base,
		Length: g.Length, Writable: g.Writable, Attributes: g.attrs, Version: 1,
	}
}

func (r *rig) announce(at *peer, reg sdk.RemoteRegion) {
	r.Helper()
	if err := at.mo.Announce(r.ctx(), reg); err != nil {
		r.Fatalf("Announce at %s: %v", at.name, err)
	}
}

// attemptMemory is attempt for an endpoint for memory.
func (r *rig) attemptMemory(from, to *peer, lane int) *attempt {
	r.Helper()
	at := r.attempt(from, to)
	at.target.Use, at.target.Lane = sdk.UseMemory, lane
	return at
}

func (r *rig) connectMemory(from, to *peer, lane int) (a, b *witness) {
	r.Helper()
	return r.mustRun(r.attemptMemory(from, to, lane))
}

// moving makes what most cases need: a region on either side, the one there
// announced here, and an endpoint.
func (r *rig) moving(size int) (w, passive *witness, here, there *region) {
	r.Helper()
	here, there = r.here(size), r.there(size)
	r.announce(r.a, there.remote())
	w, passive = r.connectMemory(r.a, r.b, 0)
	return w, passive, here, there
}

// op is one of a kind between regions.
func op(kind sdk.OpKind, here *region, hereOffset int, there *region, thereOffset, length int) sdk.Op {
	return sdk.Op{
		Kind: kind, Local: here.Capability, LocalOffset: uint64(hereOffset), Remote: there.Capability,
		RemoteBase: there.Base, RemoteOffset: uint64(thereOffset), Length: uint64(length),
	}
}

// did is what an op that is done has changed.
func did(o sdk.Op, here, there *region) {
	h, t := here.want[o.LocalOffset:][:o.Length], there.want[o.RemoteOffset:][:o.Length]
	if o.Kind == sdk.Write {
		copy(t, h)
	} else {
		copy(h, t)
	}
}

// post sends an op, once there is room for it, and returns its id, or 0 if the
// endpoint has ended.
func (w *witness) post(o sdk.Op) uint64 {
	w.r.Helper()
	return w.postFrame(o.Append(nil), int(o.Length))
}

func (w *witness) postFrame(frame []byte, size int) uint64 {
	w.r.Helper()
	lim := w.r.move
	w.wait("room", func() bool {
		return w.ended > 0 || len(w.open) < lim.Inflight && (len(w.open) == 0 || w.openSize+size <= lim.InflightBytes)
	})
	deadline := time.Now().Add(w.r.h.Timeout)
	for {
		w.mu.Lock()
		id := w.nextID
		w.nextID++
		w.open[id] = size
		w.openSize += size
		w.sent = append(w.sent, nil)
		w.mu.Unlock()
		buf := bytes.Clone(frame)
		n, err := w.ep.Send([]sdk.Frame{{ID: id, Data: buf}}, false)
		for k := range buf {
			buf[k] = 0xCC
		}
		if n == 1 && err == nil {
			return id
		}
		w.unreserve(id)
		switch {
		case sdk.CodeOf(err) == sdk.Closed:
			return 0
		case n != 0 || sdk.CodeOf(err) != sdk.Backpressure || time.Now().After(deadline):
			w.r.Fatalf("%s: Send of an op within the limits returned %d, %v", w.name, n, err)
		}
		w.pause()
	}
}

// result waits for an outcome. Without one at the end it is Unknown.
func (w *witness) result(id uint64) sdk.Completion {
	w.r.Helper()
	w.wait("an op's outcome", func() bool { _, ok := w.outcomes[id]; return ok || w.ended > 0 })
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, ok := w.outcomes[id]; ok {
		return c
	}
	return sdk.Completion{ID: id, Outcome: sdk.Unknown, Code: sdk.Unavailable}
}

// do does an op, which must succeed, and flushes a write.
func (w *witness) do(o sdk.Op, here, there *region) {
	w.r.Helper()
	if c := w.result(w.post(o)); c.Outcome != sdk.Done {
		w.r.Errorf("%s: %v of %d bytes is %v (%v), want done", w.name, o.Kind, o.Length, c.Outcome, c.Code)
		return
	}
	did(o, here, there)
	if o.Kind == sdk.Write {
		w.flushOf(o.Remote, o.RemoteBase)
	}
}

// flush makes what was written to a region visible there.
func (w *witness) flush(there *region) { w.r.Helper(); w.flushOf(there.Capability, there.Base) }

func (w *witness) flushOf(c sdk.Capability, base uint64) {
	w.r.Helper()
	if !w.r.move.NeedsFlush {
		return
	}
	o := sdk.Op{Kind: sdk.Flush, Remote: c, RemoteBase: base, Length: 1}
	if c := w.result(w.post(o)); c.Outcome != sdk.Done {
		w.r.Errorf("%s: flush is %v (%v)", w.name, c.Outcome, c.Code)
	}
}

// refused fails the case unless the op is not posted, for this reason.
func (w *witness) refused(what string, o sdk.Op, code sdk.Code) {
	w.r.Helper()
	w.refusedFrame(what, o.Append(nil), code)
}

func (w *witness) refusedFrame(what string, frame []byte, code sdk.Code) {
	w.r.Helper()
	if c := w.result(w.postFrame(frame, 0)); c.Outcome != sdk.NotPosted || c.Code != code {
		w.r.Errorf("%s: an op with %s is %v (%v), want %v (%v)", w.name, what, c.Outcome, c.Code, sdk.NotPosted, code)
	}
}

// notDone fails the case if the op is done; the endpoint may end.
func (w *witness) notDone(what string, o sdk.Op) {
	w.r.Helper()
	if c := w.result(w.post(o)); c.Outcome == sdk.Done {
		w.r.Errorf("%s: %s: %v of %d bytes is done", w.name, what, o.Kind, o.Length)
	}
}

// load keeps the endpoint busy with ops of a kind over the whole of two
// regions until stop is called, or the endpoint ends, or they are refused.
// stop returns once no more is sent, and says whether any op was done.
func (w *witness) load(kind sdk.OpKind, here, there *region) (stop func() bool) {
	end, gone := make(chan struct{}), make(chan struct{})
	size := min(w.r.move.MaxOp, int(here.Length), w.r.move.InflightBytes/4)
	frame := op(kind, here, 0, there, 0, size)
	first := w.next()
	go func() {
		defer close(gone)
		for {
			select {
			case <-end:
				return
			default:
			}
			if w.hopeless(first) || !w.roomFor(size) {
				w.pause()
				continue
			}
			if w.post(frame) == 0 {
				return
			}
			// Ops may be done all at a time: who waits for some under way looks
			// now.
			w.mu.Lock()
			w.changeLocked()
			w.mu.Unlock()
		}
	}()
	w.wait("an op to be done, and others under way", func() bool {
		return w.ended > 0 || w.outcomes[first].Outcome != 0 && len(w.open) > 0
	})
	return func() bool {
		close(end)
		<-gone
		return w.done() > 0
	}
}

func (w *witness) next() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nextID
}

// hopeless: ops are refused since a region has gone.
func (w *witness) hopeless(first uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := w.nextID; id > first && id+4 > w.nextID; id-- {
		if w.outcomes[id].Outcome == sdk.NotPosted {
			return true
		}
	}
	return false
}

func (w *witness) roomFor(size int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	lim := w.r.move
	return w.ended > 0 || len(w.open) < lim.Inflight && (len(w.open) == 0 || w.openSize+size <= lim.InflightBytes)
}

// drained waits until every op has an outcome, or the endpoint has ended.
func (w *witness) drained() {
	w.r.Helper()
	w.wait("outcomes of all ops", func() bool { return len(w.open) == 0 || w.ended > 0 })
}

// release calls Deregister or Withdraw until it says that nothing is left,
// with little time for each, as an engine does.
func (r *rig) release(what string, f func(ctx context.Context) error) {
	r.Helper()
	for end := time.Now().Add(r.h.Timeout); ; {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		var err error
		r.within(what, func() { err = f(ctx) })
		cancel()
		switch {
		case err == nil:
			return
		case !errors.Is(err, sdk.Busy):
			r.Fatalf("%s: %v, want nil or %v", what, err, sdk.Busy)
		case time.Now().After(end):
			r.Fatalf("%s has not finished within %v: %v", what, r.h.Timeout, err)
		}
	}
}

func (r *rig) deregister(g *region) {
	r.Helper()
	r.release("Deregister", func(ctx context.Context) error { return g.at.mo.Deregister(ctx, g.Capability) })
}

func (r *rig) withdraw(at, provider *peer, c sdk.Capability) {
	r.Helper()
	r.release("Withdraw", func(ctx context.Context) error { return at.mo.Withdraw(ctx, provider.inc, c) })
}

// kindNotIn returns a kind of memory that a transport does not move.
func kindNotIn(l sdk.MoveLimits) (sdk.MemoryKind, bool) {
	l = l.WithDefaults()
	for _, k := range []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory} {
		if !slices.Contains(l.Local, k) && !slices.Contains(l.Remote, k) {
			return k, true
		}
	}
	return 0, false
}

// memfds counts this process's descriptors and mappings of host memory that
// the suite made.
func memfds() (n int) {
	entries, _ := os.ReadDir("/proc/self/fd")
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, memfdName) {
			n++
		}
	}
	maps, _ := os.ReadFile("/proc/self/maps")
	return n + strings.Count(string(maps), memfdName)
}
