//go:build linux

package mnnvltransport

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// A batch is what one event is recorded after: small copies share one, a large
// one has its own, so that room for the next ones is known soon.
const (
	batchOps   = 32
	batchBytes = 8 << 20
	// maxPosted is how many bytes of copies the device has at a time, those that
	// wait for an event apart, and at least one copy. It takes 0.7 milliseconds
	// over NVLink: enough to hide how long beginning one takes. What was not
	// posted needs no fence.
	maxPosted = 256 << 20
)

// How a worker waits. Asking for an event takes three microseconds and a sleeping
// thread fifteen to wake up, so for a while after the last progress it looks
// without a pause, for events and for new ops: longer than an engine takes that
// sends the next op once it has the outcome of one, and as long as NVLink needs
// for what is posted.
const (
	eager = 200 * time.Microsecond
	nap   = 50 * time.Microsecond
	// slow, in bytes of a microsecond, is half of what NVLink moves.
	slow = 200_000
)

// patience is for how long the thread looks without a pause.
func (w *worker) patience() time.Duration {
	return eager + time.Duration(w.posted/slow)*time.Microsecond
}

// task is an op on its way.
type task struct {
	e  *endpoint
	id uint64
	op sdk.Op
	// refused says why nothing is copied, if it is not 0.
	refused sdk.Code
	here    *region // held, or nil
	there   *remote
	// leases are of the mappings here and there, if leased.
	leased bool
	leases [2]mapping.Lease[cuda.Ptr]
}

// worker makes the copies of one device, all of them on its thread.
type worker struct {
	t    *Transport
	d    *device
	wake chan struct{}
	gone chan struct{}
	// fetching are the goroutines that wait for imports.
	fetching sync.WaitGroup

	mu      sync.Mutex
	queue   []*task
	closing bool
	// waiting says that there is something in the queue, or an order to end.
	waiting atomic.Bool
	sleeps  atomic.Uint64 // how often the thread had to be woken

	// The rest is the thread's.
	local     *mapping.Local[cuda.Ptr]
	pending   []*task // for which there was no room yet
	posted    uint64  // bytes
	plain     []*lane // for ops that wait for no event
	next      int
	opened    map[cuda.EventHandle]*lane
	spare     []cuda.Event
	finished  []outcome
	leftovers []func(cuda.Context) error // what the driver refused to take back
	lost      error
	taken     []*task
}

// lane is a stream and what is in it, in order.
type lane struct {
	stream cuda.Stream
	// event is that of the application's which this lane waits for, or 0.
	event  cuda.Event
	open   batch // nothing was recorded after it yet
	flight []batch
}

// batch is copies that have ended once the event is reached, or, without one,
// once the stream is idle.
type batch struct {
	event cuda.Event
	tasks []*task
	bytes uint64
}

type outcome struct {
	e *endpoint
	sdk.Completion
	bytes uint64
}

// ended is a context that has: with it a view of a cache answers at once.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func startWorker(t *Transport, d *device, streams int) *worker {
	w := &worker{
		t: t, d: d, wake: make(chan struct{}, 1), gone: make(chan struct{}), local: d.cache.NewLocal(),
		plain: make([]*lane, streams), opened: map[cuda.EventHandle]*lane{},
	}
	go func() {
		defer close(w.gone)
		// The thread is this worker's alone, as long as it runs.
		if err := d.copies.Do(w.run); err != nil {
			t.Log.Warn("something of a GPU's is left", "gpu", d.info.Ordinal, "error", err)
		}
	}()
	return w
}

// push gives the worker a task.
func (w *worker) push(ts ...*task) {
	w.mu.Lock()
	w.queue = append(w.queue, ts...)
	w.mu.Unlock()
	w.rouse()
}

func (w *worker) rouse() {
	if !w.waiting.Swap(true) {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// close ends the thread's work once there is none. Nothing is pushed any more.
func (w *worker) close() {
	w.fetching.Wait()
	w.mu.Lock()
	w.closing = true
	w.mu.Unlock()
	w.rouse()
	<-w.gone
}

// take returns what was pushed.
func (w *worker) take() (ts []*task, closing bool) {
	if !w.waiting.Swap(false) {
		return nil, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	ts, w.queue = w.queue, w.taken[:0]
	w.taken = ts
	return ts, w.closing
}

// run is the thread.
func (w *worker) run(c cuda.Context) error {
	last := time.Now()
	for closing := false; ; {
		tasks, end := w.take()
		closing = closing || end
		w.pending = append(w.pending, tasks...)
		clear(tasks)
		w.submit(c)
		busy, progress := w.poll(c)
		if told := w.report(); told && !busy && !w.waiting.Load() {
			// What a handler has woken waits for this thread's processor: another
			// one takes it only after a sleep, which the runtime means to be of 3
			// microseconds and the kernel makes 60.
			runtime.Gosched()
		}
		if len(tasks) > 0 || progress {
			last = time.Now()
			continue
		}
		busy = busy || len(w.pending) > 0 // for the place of an event
		switch idle := time.Since(last); {
		case !busy && closing:
			return w.end(c)
		case busy && idle > w.patience():
			// The runtime's timers are of milliseconds where nothing else runs.
			_ = unix.Nanosleep(&unix.Timespec{Nsec: int64(nap)}, nil)
		case !busy && idle > eager:
			w.sleeps.Add(1)
			<-w.wake
		}
	}
}

// submit queues the copies that there is room for.
func (w *worker) submit(c cuda.Context) {
	n, held := 0, 0
	for ; n < len(w.pending); n++ {
		t := w.pending[n]
		if t.op.Event == nil && w.posted > 0 && w.posted+t.op.Length > maxPosted {
			break
		}
		switch {
		case t.e.isClosing():
			w.finish(t, sdk.NotPosted, sdk.Closed)
		case t.refused != 0:
			w.finish(t, sdk.NotPosted, t.refused)
		case w.lost != nil:
			w.finish(t, sdk.NotPosted, sdk.Unavailable)
		case !t.leased && !w.lease(t):
			w.fetching.Go(func() { w.fetch(t) })
		case !w.place(t): // others go past it
			w.pending[held] = t
			held++
		default:
			w.copy(c, t)
		}
	}
	rest := held + copy(w.pending[held:], w.pending[n:])
	clear(w.pending[rest:])
	w.pending = w.pending[:rest]
	for _, l := range w.lanes() {
		w.record(c, l)
	}
}

// lanes are all that may have something in them.
func (w *worker) lanes() []*lane {
	if len(w.opened) == 0 {
		return w.plain
	}
	all := append([]*lane{}, w.plain...)
	for _, l := range w.opened {
		all = append(all, l)
	}
	return all
}

// lease takes leases of mappings that are there. Without, their import has
// begun, or there is none.
func (w *worker) lease(t *task) bool {
	var err error
	if t.here.Kind == sdk.DeviceMemory {
		if t.leases[0], err = w.local.Acquire(ended, t.here.key, t.op.LocalOffset, t.op.Length); err != nil {
			return false
		}
	}
	if t.leases[1], err = w.local.Acquire(ended, t.there.key, t.op.RemoteOffset, t.op.Length); err != nil {
		t.leases[0].Release()
		return false
	}
	t.leased = true
	return true
}

// fetch waits for the mappings of a task and gives it back to the thread. It
// ends with the endpoint.
func (w *worker) fetch(t *task) {
	err := func() (err error) {
		if t.here.Kind == sdk.DeviceMemory {
			if t.leases[0], err = w.acquire(t, t.here.key, t.op.LocalOffset, t.here.announce); err != nil {
				return err
			}
		}
		t.leases[1], err = w.acquire(t, t.there.key, t.op.RemoteOffset, func() error {
			return w.t.remotes.again(t.there, w.d.cache)
		})
		return err
	}()
	if t.leased = err == nil; err != nil {
		t.leases[0].Release()
		t.refused = codeOf(err)
		w.t.Log.Debug("an op was not posted", "peer", t.e.peer, "error", err)
	}
	w.push(t)
}

// acquire takes a lease. A cache that does not know the key, since it had no
// room for what is not mapped, is told again.
func (w *worker) acquire(t *task, k mapping.Key, offset uint64, announce func() error) (mapping.Lease[cuda.Ptr], error) {
	l, err := w.d.cache.Acquire(t.e.ctx, k, offset, t.op.Length)
	if sdk.CodeOf(err) == sdk.StaleCapability {
		if again := announce(); again != nil {
			return l, again
		}
		l, err = w.d.cache.Acquire(t.e.ctx, k, offset, t.op.Length)
	}
	return l, err
}

// copy queues a task's copy.
func (w *worker) copy(c cuda.Context, t *task) {
	l, err := w.lane(c, t)
	if err == nil {
		local := t.here.at
		if t.here.Kind == sdk.DeviceMemory {
			local = t.leases[0].Mapping()
		}
		dst, src := local+cuda.Ptr(t.op.LocalOffset), t.leases[1].Mapping()+cuda.Ptr(t.op.RemoteOffset)
		if t.op.Kind == sdk.Write {
			dst, src = src, dst
		}
		err = c.Copy(dst, src, t.op.Length, l.stream)
	}
	if err != nil {
		w.failed(err)
		if w.lost != nil {
			w.finish(t, sdk.Unknown, sdk.Unavailable)
		} else {
			w.t.Log.Warn("a copy was refused", "peer", t.e.peer, "error", err)
			w.finish(t, sdk.NotPosted, codeOf(err))
		}
		return
	}
	l.open.tasks = append(l.open.tasks, t)
	if t.op.Event == nil {
		w.posted += t.op.Length
	}
	if l.open.bytes += t.op.Length; len(l.open.tasks) >= batchOps || l.open.bytes >= batchBytes {
		w.record(c, l)
	}
}

// record ends a lane's open batch. Without an event it waits for the stream.
func (w *worker) record(c cuda.Context, l *lane) {
	if l == nil || len(l.open.tasks) == 0 {
		return
	}
	b := l.open
	l.open = batch{}
	var err error
	if n := len(w.spare); n > 0 {
		b.event, w.spare = w.spare[n-1], w.spare[:n-1]
	} else {
		b.event, err = c.CreateEvent(false)
	}
	if err == nil {
		err = c.Record(b.event, l.stream)
	}
	if err != nil {
		w.failed(err)
		w.destroy(c, b.event)
		b.event = 0
	}
	l.flight = append(l.flight, b)
}

// poll finishes what has ended. It reports whether anything is left, and whether
// anything has ended.
func (w *worker) poll(c cuda.Context) (busy, progress bool) {
	for _, l := range w.lanes() {
		if l == nil {
			continue
		}
		n := 0
		for ; n < len(l.flight) && w.reached(c, l, &l.flight[n]); n++ {
			b := &l.flight[n]
			if b.event != 0 {
				w.spare = append(w.spare, b.event)
			}
			outcome, code := sdk.Done, sdk.Code(0)
			if w.lost != nil {
				outcome, code = sdk.Unknown, sdk.Unavailable
			}
			for _, t := range b.tasks {
				if t.op.Event == nil {
					w.posted -= t.op.Length
				}
				w.finish(t, outcome, code)
			}
		}
		rest := copy(l.flight, l.flight[n:])
		clear(l.flight[rest:])
		l.flight = l.flight[:rest]
		progress = progress || n > 0
		busy = busy || rest > 0
	}
	w.forgetEvents(c)
	return busy, progress
}

// reached reports whether a batch has ended. A lost context has ended all.
func (w *worker) reached(c cuda.Context, l *lane, b *batch) bool {
	if w.lost != nil {
		return true
	}
	if b.event == 0 {
		done, err := c.QueryStream(l.stream)
		w.failed(err)
		return done && err == nil || w.lost != nil
	}
	done, err := c.QueryEvent(b.event)
	if err == nil {
		return done
	}
	w.failed(err)
	w.destroy(c, b.event)
	b.event = 0
	return w.lost != nil
}

// finish ends a task.
func (w *worker) finish(t *task, o sdk.Outcome, code sdk.Code) {
	if t.leased {
		t.leases[0].Release()
		t.leases[1].Release()
	}
	if t.here != nil {
		w.t.regions.release(t.here)
	}
	w.finished = append(w.finished, outcome{t.e, sdk.Completion{ID: t.id, Outcome: o, Code: code}, t.op.Length})
}

// report tells the endpoints, on this thread. It reports whether it has.
func (w *worker) report() (told bool) {
	told = len(w.finished) > 0
	for len(w.finished) > 0 {
		e, n := w.finished[0].e, 1
		for n < len(w.finished) && w.finished[n].e == e {
			n++
		}
		e.complete(w.finished[:n])
		w.finished = w.finished[n:]
	}
	w.finished = w.finished[:0]
	return told
}

// failed notes an error that has cost the context.
func (w *worker) failed(err error) {
	if w.lost == nil && cuda.IsLost(err) {
		w.lost = err
		w.t.lose(w.d, err)
	}
}
