package rdmatransport

import (
	"unsafe"

	"github.com/hawser-transport/hawser/plugins/internal/memory"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// moveLimits: writes and reads are posted as they are, a work request each.
func moveLimits() sdk.MoveLimits {
	return sdk.MoveLimits{
		MaxOp: 1 << 20, Inflight: maxMoves, InflightBytes: maxMoveBytes,
		NeedsFlush: true, TargetWrites: true, Parallel: 2,
	}.WithDefaults()
}

// maxMoves and maxMoveBytes bound an endpoint's ops without an outcome, posted
// or not: many times what is on its way on the fastest links.
const (
	maxMoves     = 128
	maxMoveBytes = 16 << 20
)

// mover is the end of an endpoint for memory that its side has connected.
type mover struct {
	*endpoint
	table    *memory.Table
	limits   sdk.MoveLimits
	provider sdk.Incarnation // whose regions its ops name
	instance uint64          // of the peer's transport: its keys are no other's
	device   string          // at the path's other end
	last     uint32          // id of a slot
}

// passive is the other end of such an endpoint. It sends nothing.
type passive struct{ *endpoint }

// Send implements [sdk.Endpoint].
func (passive) Send([]sdk.Frame, bool) (int, error) { return 0, errPassive }

// move is what a slot has for an op, whose buffer is part of a region.
type move struct {
	op    verbs.Op
	at    uint64 // the address there
	key   uint32 // and its key
	here  memory.Use
	there memory.RemoteUse
	scrap *slot // where a flush reads to, which has no region here
}

// release gives a slot back, or what it holds of regions.
func (e *endpoint) release(s *slot) {
	v := s.move
	if v == nil {
		e.d.slots.put(s)
		return
	}
	v.there.End()
	if v.scrap != nil {
		e.d.slots.put(v.scrap)
	} else {
		v.here.End()
	}
}

// releaseAll empties the list.
func (e *endpoint) releaseAll(l *slotList) {
	if !e.memory {
		e.d.slots.putAll(l)
		return
	}
	for s := l.pop(); s != nil; s = l.pop() {
		e.release(s)
	}
}

// Send implements [sdk.Endpoint]. Each frame is an op. What is wrong with it is
// its outcome: not posted.
func (m *mover) Send(frames []sdk.Frame, _ bool) (n int, err error) {
	e := m.endpoint
	e.mu.Lock()
	open, bytes, cause := e.queue.n+e.flying.n, e.bytes, e.cause
	e.mu.Unlock()
	if cause != nil {
		return 0, errClosed
	}
	var taken slotList
	var refused []sdk.Completion
	size := 0
	for ; n < len(frames); n++ {
		f := &frames[n]
		op, bad := m.limits.ParseOp(f.Data)
		if open+n >= maxMoves || open+taken.n > 0 && bytes+size+int(op.Length) > maxMoveBytes {
			err = errFull
			break
		}
		var s *slot
		if bad == nil {
			s, bad = m.slot(&op)
		}
		if bad != nil {
			refused = append(refused, sdk.Completion{ID: f.ID, Outcome: sdk.NotPosted, Code: sdk.CodeOf(bad)})
			continue
		}
		s.frame = f.ID
		size += s.size
		taken.push(s)
	}
	if n == 0 {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil {
		e.releaseAll(&taken)
		return 0, errClosed
	}
	e.queue.join(&taken)
	e.bytes += size
	e.pumpLocked()
	if e.queue.n > 0 {
		e.d.watch.arm(e.d)
	}
	if len(refused) > 0 {
		p := e.parcelLocked()
		p.outcomes = append(p.outcomes, refused...)
		e.kick()
	}
	return n, err
}

// slot finds both sides of an op, and holds them.
func (m *mover) slot(op *sdk.Op) (*slot, error) {
	if op.Event != nil {
		return nil, sdk.Errorf(sdk.Unsupported, "events are of device memory, which this transport does not move")
	}
	there, err := m.table.Remotes.Use(m.provider, op)
	if err != nil {
		return nil, err
	}
	s, err := m.reach(op, there)
	if err != nil {
		there.End()
		return nil, err
	}
	m.last = (m.last + 1) % controlID // as many are never in flight
	s.id, s.move.there = m.last, there
	return s, nil
}

func (m *mover) reach(op *sdk.Op, there memory.RemoteUse) (*slot, error) {
	if there.Instance != m.instance {
		return nil, sdk.Errorf(sdk.StaleCapability, "the keys of region %v are of instance %d of the peer's transport, this endpoint leads to %d",
			there.Name, there.Instance, m.instance)
	}
	r := there.Read.(*reached)
	key, ok := r.keys[m.device]
	if !ok {
		return nil, sdk.Errorf(sdk.Unsupported, "region %v is not registered with the peer's device %s", there.Name, m.device)
	}
	v := &move{at: r.address + op.RemoteOffset, key: key, op: verbs.Read}
	if op.Kind == sdk.Flush {
		// The device there answers a read once what it wrote before is visible.
		v.at += op.Length - 1
		if v.scrap = m.d.slots.get(1); v.scrap == nil {
			return nil, errFull
		}
		return &slot{move: v, addr: v.scrap.addr, lkey: v.scrap.lkey, size: 1}, nil
	}
	if op.Kind == sdk.Write {
		v.op = verbs.Write
	}
	here, err := m.table.Regions.Use(op.Local, op.Kind == sdk.Read, op.LocalOffset, op.Length)
	if err != nil {
		return nil, err
	}
	mr := here.Pin.(*pinned).mrs[m.d]
	if mr == nil {
		here.End()
		return nil, sdk.Errorf(sdk.Unsupported, "region %v is not registered with device %s", op.Local, m.d.name)
	}
	v.here = here
	return &slot{
		move: v, addr: uint64(uintptr(unsafe.Pointer(&here.Bytes[0]))), lkey: mr.LKey(), size: len(here.Bytes),
	}, nil
}

// request is the slot's work request.
func (s *slot) request(serial uint32, inline int) verbs.SendWR {
	wr := verbs.SendWR{
		ID: sendID(serial, s.id), Addr: s.addr, LKey: s.lkey, Length: uint32(s.size), Op: verbs.Send, Signaled: true,
	}
	if s.move != nil {
		wr.Op, wr.RemoteAt, wr.RKey = s.move.op, s.move.at, s.move.key
	}
	wr.Inline = s.size > 0 && s.size <= inline && wr.Op != verbs.Read
	return wr
}
