package rdmatransport

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// sendRoom is how many sends of a device may be without a completion: its
	// completion queue has a place for each, and must not overrun.
	sendRoom = 8192

	// pollBatch is how many completions one call takes.
	pollBatch = 64

	// minSendBuffers is the least that a device works with.
	minSendBuffers = 1 << 20

	// postBatch is how many sends one call posts, at most.
	postBatch = 32
)

// device is an open device. What its endpoints share is made with the first of
// them and kept until the transport closes.
type device struct {
	name     string
	info     verbs.Info
	dev      verbs.Device
	limits   verbs.Limits
	settings *settings
	log      *slog.Logger
	changed  func() // what its ports can do has changed
	tasks    sync.WaitGroup
	ports    ports

	// starting guards what follows, and is held for reading by those who make
	// an endpoint of it.
	starting sync.RWMutex
	running  bool
	renewing bool          // its endpoints end, so that the receive buffers can be made anew
	closing  chan struct{} // closed when the device is
	pd       verbs.PD
	channel  verbs.Channel
	cq       verbs.CQ
	receives *receives
	slots    *slots
	depth    int // of the send queues
	entries  int // of the completion queue

	table  table
	lost   atomic.Bool
	missed atomic.Int64 // receive buffers whose completions may have been dropped, at most
	serial atomic.Uint32

	polling sync.Mutex // guards wcs and spent
	wcs     [pollBatch]verbs.WC
	spent   []uint32 // receive buffers that nobody needs any more

	room    atomic.Int64 // places for completions of sends
	granted atomic.Int64 // frames that peers may send, or that handlers have
	late    atomic.Uint64
	scarce  struct {
		sync.Mutex
		endpoints []*endpoint // they wait for room
	}

	watch    watch
	batches  sync.Pool // *[postBatch]verbs.SendWR
	parcels  sync.Pool // *parcel
	shortage sync.Once
}

func openDevice(p verbs.Provider, info verbs.Info, s *settings, log *slog.Logger, changed func()) (*device, error) {
	dev, err := p.Open(info.Name)
	if err != nil {
		return nil, err
	}
	d := &device{name: info.Name, info: info, dev: dev, settings: s, log: log.With("device", info.Name), changed: changed, closing: make(chan struct{})}
	d.batches.New = func() any { return new([postBatch]verbs.SendWR) }
	d.parcels.New = func() any { return new(parcel) }
	d.table.init()
	if d.limits, err = dev.Limits(); err == nil {
		err = d.refreshPorts()
	}
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return d, nil
}

// try sees whether the least memory that the device needs can be registered.
func (d *device) try() error {
	pd, err := d.dev.AllocPD()
	if err != nil {
		return err
	}
	a, err := newArea(pd, minReceives*maxFrame)
	if err == nil {
		err = a.close()
	}
	return errors.Join(err, pd.Close())
}

// start makes what endpoints share, if that is not done yet.
func (d *device) start() error {
	d.starting.Lock()
	defer d.starting.Unlock()
	if d.lost.Load() {
		return sdk.Errorf(sdk.Unavailable, "device %s is lost", d.name)
	}
	if d.running {
		return nil
	}
	if err := d.build(); err != nil {
		return errors.Join(sdk.Errorf(sdk.Unavailable, "device %s: %w", d.name, advise(err)), d.demolish())
	}
	d.running = true
	d.tasks.Go(d.poll)
	d.tasks.Go(d.inspect)
	return nil
}

func (d *device) build() (err error) {
	if err = d.domainLocked(); err != nil {
		return err
	}
	lockable := lockedLimit()
	depth := atMost(receiveBuffers(d.settings.ReceiveDepth, lockable), d.limits.SRQWRs)
	if d.receives, err = newReceives(d.pd, depth); err != nil {
		return err
	}
	if n := d.receives.n; n < d.settings.ReceiveDepth {
		d.log.Warn("fewer receive buffers than asked for", "receive_depth", d.settings.ReceiveDepth, "made", n, "memlock", memlock(), "do", raiseMemlock)
	}
	d.slots = &slots{pd: d.pd, most: min(d.settings.SendBufferBytes, max(lockable/4, minSendBuffers)), short: d.shortOfMemory}
	if d.channel, err = d.dev.CreateChannel(); err != nil {
		return err
	}
	d.entries = atMost(d.receives.n+sendRoom, d.limits.CQEntries)
	if d.cq, err = d.dev.CreateCQ(d.entries, d.channel); err != nil {
		return err
	}
	d.room.Store(int64(d.entries - d.receives.n))
	d.depth = atMost(d.settings.Endpoint.MaxQPWR+controls, d.limits.QPWRs)
	return nil
}

// demolish closes what build has made, in reverse. It stops at what is still
// in use, whose memory the device may still reach.
func (d *device) demolish() error {
	if d.cq != nil {
		if err := d.cq.Close(); err != nil {
			return err
		}
		d.cq = nil
	}
	if d.channel != nil {
		if err := d.channel.Close(); err != nil {
			return err
		}
		d.channel = nil
	}
	if d.slots != nil {
		if err := d.slots.close(); err != nil {
			return err
		}
		d.slots = nil
	}
	if d.receives != nil {
		if err := d.receives.close(); err != nil {
			return err
		}
		d.receives = nil
	}
	return nil
}

// domain is the protection domain of everything on the device: regions have it
// before there is an endpoint.
func (d *device) domain() (verbs.PD, error) {
	d.starting.Lock()
	defer d.starting.Unlock()
	err := d.domainLocked()
	return d.pd, err
}

func (d *device) domainLocked() (err error) {
	if d.pd == nil {
		d.pd, err = d.dev.AllocPD()
	}
	return err
}

// close releases the device. Its endpoints are gone.
func (d *device) close() error {
	d.starting.Lock()
	defer d.starting.Unlock()
	close(d.closing)
	d.watch.stop()
	d.dev.Interrupt()
	if d.channel != nil {
		d.channel.Interrupt()
	}
	d.tasks.Wait()
	d.running = false
	if n := d.late.Load(); n > 0 {
		d.log.Debug("completions of queue pairs that were gone", "count", n)
	}
	err := d.demolish()
	if err == nil && d.pd != nil {
		err = d.pd.Close()
	}
	return errors.Join(err, d.dev.Close())
}

// missable is the part of the receive buffers that may be missing before the
// device's endpoints are ended to get them back.
const missable = 4

// settle gets back the receive buffers that completions were dropped for, once
// no endpoint is left. If there may be too many of them it sees to that.
func (d *device) settle() {
	d.starting.Lock()
	defer d.starting.Unlock()
	missed := d.missed.Load()
	switch {
	case !d.running || missed == 0:
	case d.table.n.Load() == 0:
		d.missed.Store(0)
		d.renewing = false
		if err := d.receives.renew(d.pd); err != nil {
			d.fail(err)
		}
	case missed > int64(d.receives.n/missable) && !d.renewing:
		d.renewing = true
		d.log.Warn("queue pairs were reset and receive buffers are missing: all endpoints end", "missing", missed, "receive_depth", d.receives.n)
		d.table.each(func(e *endpoint) {
			e.end(sdk.Errorf(sdk.Unavailable, "device %s makes its receive buffers anew", d.name))
		})
	}
}

func (d *device) shortOfMemory(err error) {
	d.shortage.Do(func() {
		d.log.Warn("no more send buffers: frames wait for those that there are", "error", err, "do", raiseMemlock)
	})
}

// takeRoom reserves places for completions, as many as there are.
func (d *device) takeRoom(want int) int {
	for {
		have := d.room.Load()
		n := min(int64(want), max(have, 0))
		if n == 0 {
			return 0
		}
		if d.room.CompareAndSwap(have, have-n) {
			return int(n)
		}
	}
}

// giveRoom returns places, and wakes those that wait for some.
func (d *device) giveRoom(n int) {
	if n == 0 {
		return
	}
	d.room.Add(int64(n))
	d.scarce.Lock()
	waiting := d.scarce.endpoints
	d.scarce.endpoints = nil
	d.scarce.Unlock()
	for _, e := range waiting {
		e.kick()
	}
}

// starve lets the endpoint be woken when there is room.
func (d *device) starve(e *endpoint) {
	d.scarce.Lock()
	defer d.scarce.Unlock()
	d.scarce.endpoints = append(d.scarce.endpoints, e)
	if d.room.Load() > 0 { // given back meanwhile
		e.kick()
	}
}

// reads is how many reads a queue pair may have outstanding as initiator, and
// destReads as target.
func (d *device) reads() int { return atMost(d.settings.Endpoint.MaxRDAtomic, d.limits.InitRDAtomic) }
func (d *device) destReads() int {
	return atMost(d.settings.Endpoint.MaxDestRDAtomic, d.limits.RDAtomic)
}

// atMost keeps within a device's limit, 0 of which says nothing.
func atMost(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// share is how many frames an endpoint may be granted that holds some already:
// its part of the buffers, as far as others' grants leave any, but never so
// few that it comes to a halt. The reserve is left for control messages.
func (d *device) share(holds uint64) uint64 {
	part := share(d.receives.n, int(d.table.frames.Load()))
	free := int64(d.receives.n-d.receives.n/reserve) - d.granted.Load()
	return uint64(max(min(int64(part), int64(holds)+free), minShare))
}

// fail ends everything on the device, which is lost.
func (d *device) fail(err error) {
	if d.lost.Swap(true) {
		return
	}
	d.log.Error("the device is lost", "error", err)
	d.table.each(func(e *endpoint) {
		e.end(sdk.Errorf(sdk.Unavailable, "device %s is lost: %w", d.name, err))
	})
	d.changed()
}

// watch looks, a few times within the stall timeout, at endpoints that have
// sends without an outcome. It runs only while a device has some.
type watch struct {
	mu      sync.Mutex
	timer   *time.Timer
	armed   atomic.Bool
	stopped bool
	ticks   atomic.Uint32
}

// stallTicks is how many looks make the stall timeout.
const stallTicks = 4

// arm is called whenever something was posted, or waits for that.
func (w *watch) arm(d *device) {
	if !w.armed.Load() && !w.armed.Swap(true) {
		w.set(d)
	}
}

func (w *watch) set(d *device) {
	w.mu.Lock()
	defer w.mu.Unlock()
	every := milliseconds(d.settings.StallTimeoutMS) / stallTicks
	switch {
	case w.stopped:
	case w.timer == nil:
		w.timer = time.AfterFunc(every, d.look)
	default:
		w.timer.Reset(every)
	}
}

func (w *watch) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	if w.timer != nil {
		w.timer.Stop()
	}
}

// look sees after endpoints whose sends have no completion.
func (d *device) look() {
	now := d.watch.ticks.Add(1)
	busy := false
	d.watch.armed.Store(false) // before looking: who posts from now on arms it
	d.table.each(func(e *endpoint) { busy = e.stalled(now) || busy })
	if busy {
		d.watch.arm(d)
	}
}
