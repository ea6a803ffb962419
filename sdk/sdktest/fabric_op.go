package sdktest

import (
	"slices"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// fabricOp is one op under way. What a write carries was read when it was
// sent, what a read has found is written here when its receipt comes: so an
// end that has ended touches nothing any more.
type fabricOp struct {
	sdk.Op
	id     uint64
	local  *fabricRegion
	remote *fabricRemote
	data   []byte
	target *fabricRegion // set once it has begun there
	why    error         // not done
}

// unflushedFor is how long a write that is done takes to be there without a
// flush.
const unflushedFor = 10 * time.Millisecond

// postLocked takes an op. One that cannot be done has its outcome at once.
func (e *end) postLocked(fr sdk.Frame) error {
	if e.side != 0 {
		return sdk.Errorf(sdk.InvalidArgument, "ops are of the side that connected the endpoint")
	}
	m := e.c.f.opt.Move
	op := &fabricOp{id: fr.ID}
	var err error
	if op.Op, err = m.ParseOp(fr.Data); err == nil {
		if size := int(op.Length); len(e.ops) > 0 && e.bytes+size > m.InflightBytes {
			return sdk.Errorf(sdk.Backpressure, "%d ops, %d bytes are under way", len(e.ops), e.bytes)
		}
		err = e.resolveLocked(op)
	}
	e.lastID = fr.ID
	if err != nil {
		e.completions = append(e.completions, sdk.Completion{ID: fr.ID, Outcome: sdk.NotPosted, Code: sdk.CodeOf(err)})
		e.signal()
		return nil
	}
	e.unfinished[fr.ID] = int(op.Length)
	e.bytes += int(op.Length)
	e.ops[fr.ID] = op
	l := &e.c.lanes[0]
	l.frames = append(l.frames, e.c.stampLocked(0, packet{id: fr.ID, op: op}))
	e.sentLocked()
	return nil
}

// resolveLocked finds both sides of an op, and reads what a write carries.
func (e *end) resolveLocked(op *fabricOp) error {
	for _, r := range e.m.remotes {
		if r.Provider == e.peer && r.Capability == op.Remote && (!op.Remote.IsZero() || r.Base == op.RemoteBase) {
			op.remote = r
		}
	}
	if op.remote == nil {
		return sdk.Errorf(sdk.StaleCapability, "no region %v of that peer", op.Remote)
	}
	if err := op.remote.Admit(op.Kind == sdk.Write, op.RemoteOffset, op.Length); err != nil {
		return err
	}
	if op.Kind == sdk.Flush {
		return nil
	}
	if op.local = e.m.regionLocked(op.Local, 0); op.local == nil || op.Local.IsZero() {
		return sdk.Errorf(sdk.StaleCapability, "no region %v here", op.Local)
	}
	if err := op.local.Admit(op.Kind == sdk.Read, op.LocalOffset, op.Length); err != nil {
		return err
	}
	if op.Kind == sdk.Write {
		op.data = make([]byte, op.Length)
		return op.local.read(op.LocalOffset, op.data)
	}
	return nil
}

// carryOutLocked does an op at its target. It returns false for one that is
// held, or will never be done.
func (e *end) carryOutLocked(p *packet) bool {
	f, op := e.c.f, p.op
	if e.ended && !f.unfenced {
		return false
	}
	if op.target == nil && op.why == nil {
		op.target, op.why = e.targetLocked(op)
	}
	if op.why == nil && op.Kind == sdk.Write && (f.held[e.node()] || f.held[""]) {
		if !p.held {
			p.held = true
			f.counters.Held++
		}
		return false
	}
	if op.why != nil {
		return true
	}
	e.m.progress++
	switch {
	case op.Kind != sdk.Write:
		e.flushLocked()
		if op.Kind == sdk.Read {
			op.data = make([]byte, op.Length)
			op.why = op.target.read(op.RemoteOffset, op.data)
		}
		op.target = nil
		f.counters.Moved++
	case f.opt.Move.NeedsFlush:
		late := *op
		e.unflushed = append(e.unflushed, &late)
		op.target = nil
		time.AfterFunc(unflushedFor, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			if slices.Contains(e.unflushed, &late) {
				e.flushLocked()
			}
		})
	default:
		op.why = e.writeLocked(op)
		op.target = nil
	}
	return true
}

// targetLocked finds an op's region here, by what the op says: what its sender
// has made of the descriptor does not count.
func (e *end) targetLocked(op *fabricOp) (*fabricRegion, error) {
	r := e.m.regionLocked(op.Remote, op.RemoteBase)
	if r == nil {
		return nil, sdk.Errorf(sdk.StaleCapability, "no region %v", op.Remote)
	}
	return r, r.Admit(op.Kind == sdk.Write, op.RemoteOffset, op.Length)
}

func (e *end) writeLocked(op *fabricOp) error {
	f := e.c.f
	f.counters.Moved++
	if from := e.c.ends[0]; from == nil || from.ended {
		f.counters.Late++
	}
	return op.target.write(op.RemoteOffset, op.data)
}

func (e *end) flushLocked() {
	for _, op := range e.unflushed {
		_ = e.writeLocked(op) // it is done already: nobody is left to tell
	}
	e.unflushed = nil
}

// finishLocked ends an op whose receipt has come.
func (e *end) finishLocked(op *fabricOp) {
	if e.ended {
		return
	}
	if op.why == nil && op.Kind == sdk.Read {
		op.why = op.local.write(op.LocalOffset, op.data)
	}
	delete(e.ops, op.id)
	c := sdk.Completion{ID: op.id, Outcome: sdk.Done}
	if op.why != nil {
		c.Outcome, c.Code = sdk.NotPosted, sdk.CodeOf(op.why)
	}
	e.completeLocked(c)
	e.c.f.wakeLocked()
}

// fenceLocked is what an end's end means for memory: nothing is touched for it
// from here on.
func (e *end) fenceLocked() {
	if e.c.use != sdk.UseMemory {
		return
	}
	clear(e.ops)
	if e.side == 1 {
		e.flushLocked()
		if !e.c.f.unfenced {
			l := &e.c.lanes[0]
			l.frames = slices.DeleteFunc(l.frames, func(p packet) bool { return p.op != nil })
		}
	}
	e.c.f.wakeLocked()
}

func (r *fabricRegion) read(offset uint64, b []byte) error {
	_, err := r.File.ReadAt(b, int64(r.Offset+offset))
	return broken(err)
}

func (r *fabricRegion) write(offset uint64, b []byte) error {
	_, err := r.File.WriteAt(b, int64(r.Offset+offset))
	return broken(err)
}

// broken gives an error of a file a code.
func broken(err error) error {
	if err == nil {
		return nil
	}
	return sdk.Errorf(sdk.Refused, "the region's file: %w", err)
}
