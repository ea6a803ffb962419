package rdmatransport

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	maxFrame = 64 << 10

	// maxFlying bounds an endpoint's posted frames, maxOpen and maxOpenBytes
	// those without an outcome, posted or not.
	maxFlying    = 256
	maxOpen      = 512
	maxOpenBytes = 4 << 20
)

// endpoint is one end of a connection: a queue pair, and what was sent and has
// come over it. Its run goroutine is the only one that calls the handler; the
// device's poller fills its inbox and posts what waits.
type endpoint struct {
	d       *device
	handler sdk.Handler
	peer    string // for messages
	port    int    // the device's
	gid     int    // index
	qp      verbs.QP
	num     uint32
	memory  bool // for ops, not for frames
	serial  uint32
	psn     uint32        // of the first packet
	accept  bool          // the peer connects
	wake    chan struct{} // wakes the run goroutine, holds one

	mu     sync.Mutex
	inbox  *parcel  // nil while it is empty
	missed int      // frames that were dropped, of which nobody has been told
	queue  slotList // taken, never posted
	flying slotList // posted, without a completion
	bytes  int      // of both
	posted int      // flying, and control messages

	sent, edge uint64 // frames posted since the beginning, and how many may be
	controls   uint8  // control messages that are posted, by kind
	starved    bool   // waits for room in the completion queue
	progress   uint32 // the watch's tick of the last completion, or first post

	received, consumed, granted uint64

	linked  bool  // the queue pair is connected to the peer's
	joined  bool  // the peer's end is known to be there
	waiting bool  // Connect waits for that
	cause   error // why it ended
	left    bool  // the peer has said bye
	broken  bool  // the queue pair carries nothing any more
	emptied bool  // and takes no more receives
	closed  bool  // by this side
	over    bool  // nothing may reach the handler any more

	active atomic.Bool // had a completion since the last inspection

	held atomic.Bool // the handler has no room; resume says when it has

	// The run goroutine's own.
	offerer sdk.Offerer // the handler, if it can be without room
	kept    *parcel     // frames that wait for room
	behind  int         // frames that were dropped meanwhile: the peer may send no others for them
	rushed  bool        // waiting for room is over
	lossy   bool        // completions of receives may have been dropped
}

// newEndpoint makes a queue pair, in INIT, and publishes it. What its peer may
// do to registered memory is access. One for memory has a part in the shared
// receive queue for its control messages only: it grants no frame.
func newEndpoint(d *device, port localPort, target sdk.Target, access verbs.Access) (*endpoint, error) {
	if err := d.start(); err != nil {
		return nil, err
	}
	d.starting.RLock()
	defer d.starting.RUnlock()
	if d.renewing {
		return nil, sdk.Errorf(sdk.Unavailable, "device %s makes its receive buffers anew: try again", d.name)
	}
	a := &d.settings.Endpoint
	qp, err := d.pd.CreateQP(verbs.QPInit{
		SendCQ: d.cq, RecvCQ: d.cq, SRQ: d.receives.srq,
		SendWRs: d.depth, MaxSGE: a.MaxSGE, MaxInline: a.MaxInline,
	})
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "device %s makes no queue pair: %w", d.name, advise(err))
	}
	if err := qp.ToInit(verbs.InitAttr{Port: port.Number, PkeyIndex: a.PkeyIndex, Access: access}); err != nil {
		_ = qp.Close()
		return nil, sdk.Errorf(sdk.Unavailable, "device %s: %w", d.name, err)
	}
	e := &endpoint{
		d: d, peer: bootstrap.PeerName(target), port: port.Number, gid: port.index, qp: qp, num: qp.Num(),
		memory: target.Use == sdk.UseMemory, serial: d.serial.Add(1) & maxSerial, psn: uint32(a.PSN), wake: make(chan struct{}, 1),
	}
	if e.memory {
		// A queue pair of this host that has lost its peer goes on sending to a
		// number that may be another one's by now, which would take a packet
		// with the number that it expects for its own peer's: a write that is
		// done would not be there.
		e.psn = rand.Uint32() & maxNumber
	}
	d.table.publish(e)
	if !e.memory {
		e.granted = uint64(opening(d.receives.n, int(d.table.frames.Load())))
		d.granted.Add(int64(e.granted))
	}
	return e, nil
}

// link connects the queue pair to the peer's.
func (e *endpoint) link(path rail.Path, peer message, mtu verbs.MTU) error {
	a := &e.d.settings.Endpoint
	err := e.qp.ToRTR(verbs.RTRAttr{
		MTU: mtu, PeerQP: peer.number(), PeerPSN: peer.PSN, MaxDestRD: e.d.destReads(), MinRNRTimer: a.MinRNRTimer,
		Port: e.port, PeerLID: peer.LocalLID, ServiceLevel: a.ServiceLevel,
		Global: global(path), PeerGID: peer.LocalGID.As16(), SGIDIndex: e.gid,
		HopLimit: a.HopLimit, TrafficClass: a.TrafficClass, FlowLabel: uint32(a.FlowLabel),
	})
	if err == nil {
		e.mu.Lock()
		e.linked, e.edge = true, uint64(peer.SendLimit)
		e.mu.Unlock()
		err = e.qp.ToRTS(verbs.RTSAttr{
			Timeout: a.SendTimeout, RetryCnt: a.SendRetryCount, RNRRetry: a.RNRRetry, PSN: e.psn, MaxRD: e.reads(peer),
		})
	}
	if err != nil {
		return sdk.Errorf(sdk.Unavailable, "device %s: %w", e.d.name, err)
	}
	return nil
}

// reads is how many reads may be outstanding: as many as both devices manage.
// Frames need none.
func (e *endpoint) reads(peer message) int {
	if !e.memory {
		return e.d.reads()
	}
	return min(e.d.reads(), peer.ReadLimit)
}

// global says whether packets carry GIDs: always on Ethernet, and on InfiniBand
// between subnets.
func global(p rail.Path) bool {
	l, r := p.Local.GID.As16(), p.Remote.GID.As16()
	return p.Local.Link != rail.LinkName(verbs.InfiniBand) || [8]byte(l[:8]) != [8]byte(r[:8])
}

// Send implements [sdk.Endpoint]. The frames are copied without the lock, since
// the poller must not wait for that.
func (e *endpoint) Send(frames []sdk.Frame, _ bool) (n int, err error) {
	e.mu.Lock()
	open, bytes, cause := e.queue.n+e.flying.n, e.bytes, e.cause
	e.mu.Unlock()
	if cause != nil {
		return 0, errClosed
	}
	var taken slotList
	size := 0
	for n < len(frames) && err == nil {
		f := &frames[n]
		if err = admit(open+n, bytes+size, len(f.Data)); err != nil {
			break
		}
		s := e.d.slots.get(len(f.Data))
		if s == nil {
			err = errFull
			break
		}
		copy(s.mem, f.Data)
		s.frame = f.ID
		size += s.size
		taken.push(s)
		n++
	}
	if n == 0 {
		return 0, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil {
		e.d.slots.putAll(&taken)
		return 0, errClosed
	}
	e.queue.join(&taken)
	e.bytes += size
	e.pumpLocked()
	if e.queue.n > 0 {
		e.d.watch.arm(e.d)
	}
	return n, err
}

func admit(open, bytes, size int) error {
	switch {
	case size > maxFrame:
		return errTooLarge
	case open >= maxOpen || open > 0 && bytes+size > maxOpenBytes:
		return errFull
	}
	return nil
}

// Close implements [sdk.Endpoint].
func (e *endpoint) Close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	e.endLocked(errClosed)
}

// end ends the endpoint, for a cause of which only the first counts.
func (e *endpoint) end(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked(cause)
}

func (e *endpoint) endLocked(cause error) {
	if e.cause == nil {
		e.cause = cause
	}
	e.kick()
}

// unlessJoined ends the endpoint unless the peer has arrived.
func (e *endpoint) unlessJoined(cause error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.joined {
		e.endLocked(cause)
	}
}

// breakLocked ends it because the queue pair is no good any more.
func (e *endpoint) breakLocked(cause error) {
	e.broken = true
	e.endLocked(cause)
}

func (e *endpoint) kick() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// stalled ends the endpoint if its sends have seen no completion for too long.
// Where frames wait and nothing is posted it posts a message that tells a reader
// that has stopped from a queue pair that is gone; so does the passive end of an
// endpoint for memory, which posts nothing else, at every look. It says whether
// to look again.
func (e *endpoint) stalled(tick uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cause != nil || e.posted+e.queue.n == 0 && !(e.memory && e.accept) {
		return false
	}
	if e.posted == 0 {
		if e.joined && e.tellLocked(ready, 0) {
			e.progress = tick - 1 // the next looks make up the timeout
		}
		return true
	}
	if tick-e.progress > stallTicks {
		e.breakLocked(sdk.Errorf(sdk.Unavailable, "%d sends to %s have seen no completion for %s",
			e.posted, e.peer, milliseconds(e.d.settings.StallTimeoutMS)))
	}
	return true
}

// run is the endpoint's goroutine: it hands over what the poller has brought,
// until the end.
func (e *endpoint) run() {
	if o, ok := e.handler.(sdk.Offerer); ok && o.MayHold() {
		e.offerer = o
	}
	var arrival <-chan time.Time
	if e.accept {
		timer := time.NewTimer(milliseconds(e.d.settings.AcceptWaitMS))
		defer timer.Stop()
		arrival = timer.C
	}
	for {
		e.deliver()
		e.mu.Lock()
		e.pumpLocked() // there may be room again
		ended := e.cause != nil
		e.mu.Unlock()
		if ended {
			break
		}
		select {
		case <-e.wake:
		case <-arrival:
			e.unlessJoined(sdk.Errorf(sdk.Unavailable, "%s has not arrived within %s", e.peer, milliseconds(e.d.settings.AcceptWaitMS)))
		}
	}
	e.retire()
}

// dispatchedLocked follows a batch of completions.
func (e *endpoint) dispatchedLocked() {
	e.active.Store(true)
	e.pumpLocked()
	if e.inbox != nil || e.missed > 0 || e.cause != nil || e.waiting {
		e.kick()
	}
}
