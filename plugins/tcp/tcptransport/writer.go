package tcptransport

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/receipt"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// maxInflight bounds the frames of an endpoint that have no receipt.
	maxInflight = 4096

	// quietAfter is how long after an inline write the link counts as quiet
	// again, unless the peer was heard before that: a burst's next frame comes
	// within a microsecond, a closed loop's after the peer's.
	quietAfter = 3 * time.Microsecond

	// inlineBytes is the most that a caller writes itself in one call, so
	// that Send returns soon.
	inlineBytes = chunkSize

	// lastWords is how long a connection that cannot be written to is read.
	lastWords = time.Second
)

// owner says who may write to the socket.
type owner uint8

const (
	// nobody is writing, and everything is written.
	nobody owner = iota
	// caller: whoever found something to write while nobody was.
	caller
	// flusher: the endpoint's own goroutine.
	flusher
	// detached: there is no connection yet.
	detached
)

// writer is an endpoint's sending half: a bounded queue of encoded records
// with one owner at a time that writes them. It also holds the endpoint's end.
type writer struct {
	chunks *chunks
	limit  int
	peer   string
	base   time.Time
	kick   chan struct{} // wakes the flusher, holds one
	done   chan struct{} // closed when the endpoint has ended
	heard  atomic.Bool   // frames came since the last send

	mu          sync.Mutex
	released    sync.Cond // after the end: the owner has let go
	sock        *socket
	owner       owner
	ended       bool
	cause       error // why it ended
	queue       []*chunk
	queued      int
	quietFrom   time.Duration // since base
	outstanding receipt.Outstanding
	owed        receipt.Owed
	delay       receipt.Delay
}

func newWriter(t *Transport, peer string) *writer {
	w := &writer{
		chunks: &t.chunks, limit: t.settings.SendBufferBytes, peer: peer, base: t.base,
		kick: make(chan struct{}, 1), done: make(chan struct{}), owner: detached,
	}
	w.released.L = &w.mu
	w.delay = receipt.Delay{Fire: w.tell, Tasks: &t.Life.Tasks}
	return w
}

// send queues frames and sees to it that they get written.
func (w *writer) send(frames []sdk.Frame, more bool) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for n < len(frames) && err == nil {
		if err = w.admitLocked(frames[n].Data); err == nil {
			c := w.tailLocked(headerLen + len(frames[n].Data))
			c.b = appendFrame(c.b, frames[n].Data)
			w.outstanding.Push(frames[n].ID)
			n++
		}
	}
	switch {
	case n == 0 || w.owner != nobody:
	case more || !w.quietLocked():
		w.handOverLocked()
	default:
		w.writeInlineLocked()
	}
	return n, err
}

func (w *writer) quietLocked() bool {
	return w.heard.Swap(false) || time.Since(w.base) >= w.quietFrom
}

func (w *writer) admitLocked(data []byte) error {
	switch {
	case w.ended:
		return errClosed
	case len(data) > maxFrame:
		return errTooLarge
	case w.outstanding.Len() >= maxInflight || w.queued+headerLen+len(data) > w.limit:
		return errFull
	}
	return nil
}

// tailLocked returns a chunk with room for n bytes, which the caller fills.
func (w *writer) tailLocked(n int) *chunk {
	w.queued += n
	if k := len(w.queue); k > 0 && w.queue[k-1].room(n) {
		return w.queue[k-1]
	}
	c := w.chunks.get()
	w.queue = append(w.queue, c)
	return c
}

// receiptLocked puts the receipt that is owed, if any, behind what is queued.
// Whoever is about to write calls it.
func (w *writer) receiptLocked() {
	if !w.owed.Any() {
		return
	}
	if w.queued > 0 {
		w.delay.Carried()
	}
	c := w.tailLocked(receiptRecordLen)
	c.b = appendReceipt(c.b, w.owed.Take())
}

// handOverLocked makes the flusher the owner.
func (w *writer) handOverLocked() {
	w.owner = flusher
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// writeInlineLocked writes without waiting. What the socket does not take at
// once is the flusher's.
func (w *writer) writeInlineLocked() {
	w.owner = caller
	for budget := inlineBytes; ; {
		w.receiptLocked()
		n, whole := w.writeHeadLocked(w.sock.tryWrite)
		budget -= n
		switch {
		case w.ended || w.queued == 0 && !w.owed.Due():
			w.quietFrom = time.Since(w.base) + quietAfter
			w.releaseLocked()
			return
		case !whole || budget <= 0:
			w.handOverLocked()
			return
		}
	}
}

// writeHeadLocked gives the first chunk, of which there must be one, to write,
// and lets go of the lock meanwhile. It says how many bytes were taken and
// whether that was all. Frames that are sent meanwhile go behind it.
func (w *writer) writeHeadLocked(write func([]byte) (int, error)) (n int, whole bool) {
	c := w.queue[0]
	b := c.b[c.written:]
	w.mu.Unlock()
	n, err := write(b)
	w.mu.Lock()
	w.queued -= n
	c.written += n
	if err != nil {
		w.endLocked(sdk.Errorf(sdk.Unavailable, "the connection to %s broke: %w", w.peer, err))
		// What the peer sent before it went may still be here to be read.
		_ = w.sock.SetReadDeadline(time.Now().Add(lastWords))
	}
	if c.written == len(c.b) {
		w.chunks.put(c)
		k := copy(w.queue, w.queue[1:])
		w.queue[k] = nil
		w.queue = w.queue[:k]
	}
	return n, n == len(b)
}

func (w *writer) releaseLocked() {
	w.owner = nobody
	if w.ended {
		w.released.Broadcast()
	}
}

// flush is the flusher's goroutine.
func (w *writer) flush() {
	for {
		select {
		case <-w.kick:
			w.flushAll()
		case <-w.done:
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.owner == flusher {
				w.releaseLocked()
			}
			return
		}
	}
}

func (w *writer) flushAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.ended && (w.queued > 0 || w.owed.Any()) {
		w.receiptLocked()
		w.writeHeadLocked(w.sock.Write)
	}
	w.releaseLocked()
}

// attach gives the writer its connection, unless the endpoint has ended.
func (w *writer) attach(s *socket) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return false
	}
	w.sock, w.owner = s, nobody
	if w.queued > 0 {
		w.handOverLocked()
	}
	return true
}

// taken notes frames that the handler has taken. Their receipt waits a little
// for company, so that a reply carries it and it wakes nobody on its own.
func (w *writer) taken(frames, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owed.Add(frames, bytes)
	if w.owner == nobody && w.owed.Due() && !w.ended {
		w.writeInlineLocked()
	}
	if w.owed.Any() && !w.ended {
		w.delay.Arm()
	}
}

// tell writes the receipt that has found no company.
func (w *writer) tell() {
	w.mu.Lock()
	defer w.mu.Unlock()
	waited := w.delay.Fired()
	if w.ended {
		return
	}
	if w.owner == nobody && w.owed.Any() && waited {
		w.writeInlineLocked()
	}
	if w.owed.Any() && !w.ended {
		w.delay.Arm()
	}
}

// receipted takes the peer's receipt.
func (w *writer) receipted(count uint64, cs []sdk.Completion) ([]sdk.Completion, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.outstanding.Receipt(count, cs)
}

// end ends the endpoint, for a cause of which only the first counts, and makes
// reader and flusher return.
func (w *writer) end(cause error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.endLocked(cause)
	if w.sock != nil {
		_ = w.sock.Close()
	}
}

func (w *writer) endLocked(cause error) {
	if w.ended {
		return
	}
	w.ended, w.cause = true, cause
	close(w.done)
	w.delay.Stop()
}

// withdraw waits, after the end, until nobody writes any more, and takes back
// every frame of which no byte has left. It returns the endpoint's cause.
func (w *writer) withdraw() ([]sdk.Completion, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.owner == caller || w.owner == flusher {
		w.released.Wait()
	}
	frames := 0
	for _, c := range w.queue {
		frames += unstarted(c.b, c.written)
		w.chunks.put(c)
	}
	w.queue, w.queued = nil, 0
	return w.outstanding.Withdraw(frames, sdk.CodeOf(w.cause), nil), w.cause
}
