package link

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"
)

const (
	// queueLimit bounds the bytes that wait for a peer that does not read.
	queueLimit = 8 << 20
	// queueKeep is the buffer that a queue keeps when it is quiet.
	queueKeep = 256 << 10
)

const (
	// neverInline as a gap leaves all writing to the flusher.
	neverInline = time.Duration(math.MaxInt64)
	// alwaysInline as a gap writes inline unless a write is under way.
	alwaysInline = time.Duration(math.MinInt64)
)

// queue is a carrier's sending side: a bounded buffer of encoded records, one
// flusher goroutine, and the rule that decides who writes.
//
// There are two buffers. Senders append to one, whoever writes owns the other;
// they change places when the latter is empty. Only one goroutine writes at a
// time, the flusher or a sender inline, and holds no lock meanwhile.
type queue struct {
	max   int // largest payload
	limit int
	// gap is how long the link must have been quiet for a sender to write
	// inline.
	gap time.Duration
	// write moves some of the front of a batch, blocking as it must; try is
	// the same without blocking and may move nothing. The descriptors go with
	// the first byte. One caller at a time.
	write, try func(b []byte, fds []int) (int, error)
	dup        func(*os.File) (int, error) // nil: files cannot be sent
	closeFD    func(int)
	start      time.Time
	done       chan struct{} // closed when the flusher has left

	mu    sync.Mutex
	work  sync.Cond // the flusher waits here
	room  sync.Cond // senders with Wait wait here, in the order of tickets
	ended bool
	busy  bool          // somebody writes, and owns out
	last  time.Duration // when the link was last seen active
	in    batch
	out   batch
	off   int // how much of out has left
	spare slack

	// Tickets keep waiting senders in order, so that a big record is not
	// starved by small ones.
	ticketHead, ticketTail uint64
}

// batch is a number of encoded records and the files that go with them.
type batch struct {
	b     []byte
	files []attachment
}

// attachment is the descriptors that go with the record at a position.
type attachment struct {
	at  int
	fds []int
}

// run starts the flusher.
func (q *queue) run() {
	q.work.L, q.room.L = &q.mu, &q.mu
	q.start = time.Now()
	q.done = make(chan struct{})
	// Far enough back for the first send to be inline.
	q.last = math.MinInt64 / 2
	go q.flush()
}

// send is Carrier.Send.
func (q *queue) send(recs []Record, mode Mode) (n int, err error) {
	q.mu.Lock()
	for n < len(recs) {
		if err = q.addLocked(&recs[n], mode); err != nil {
			break
		}
		n++
	}
	if n == 0 || q.busy || q.ended {
		// Whoever is busy looks again when it is done.
		q.mu.Unlock()
		return n, err
	}
	// A send with More leaves the clock alone: the send that ends its series
	// may then write all of it inline.
	wake := true
	if mode&More == 0 && q.try != nil {
		if now := time.Since(q.start); now-q.last >= q.gap {
			q.stepLocked(q.try)
			wake = q.pendingLocked() > 0
		} else {
			q.last = now
		}
	}
	q.mu.Unlock()
	if wake {
		q.work.Signal()
	}
	return n, err
}

// addLocked puts one record into the buffer.
func (q *queue) addLocked(r *Record, mode Mode) error {
	if q.ended {
		return ErrClosed
	}
	switch {
	case !r.Type.valid():
		return fmt.Errorf("%w: unknown type %d", ErrInvalid, r.Type)
	case len(r.Payload) > q.max:
		return fmt.Errorf("%w: payload of %d bytes, at most %d are allowed", ErrInvalid, len(r.Payload), q.max)
	case len(r.Files) > MaxFiles:
		return fmt.Errorf("%w: %d files, at most %d are allowed", ErrInvalid, len(r.Files), MaxFiles)
	case len(r.Files) > 0 && r.Type != Files:
		return fmt.Errorf("%w: record type %d with files", ErrInvalid, r.Type)
	case r.Type == Files && q.dup == nil:
		return fmt.Errorf("%w: this carrier cannot send files: %w", ErrInvalid, errors.ErrUnsupported)
	}
	if err := q.reserveLocked(HeaderSize+len(r.Payload), mode); err != nil {
		return err
	}
	if len(r.Files) > 0 {
		fds, err := q.dupAll(r.Files)
		if err != nil {
			return err
		}
		q.in.files = append(q.in.files, attachment{at: len(q.in.b), fds: fds})
	}
	q.in.b = appendRecord(q.in.b, r)
	return nil
}

// reserveLocked returns once there is room for size bytes. Somebody who waits
// comes before everybody who does not yet.
func (q *queue) reserveLocked(size int, mode Mode) error {
	if q.ticketHead == q.ticketTail && q.fitsLocked(size) {
		return nil
	}
	if mode&Wait == 0 {
		return ErrFull
	}
	q.work.Signal()
	ticket := q.ticketTail
	q.ticketTail++
	for !q.ended && (ticket != q.ticketHead || !q.fitsLocked(size)) {
		q.room.Wait()
	}
	q.ticketHead++
	if q.ticketHead != q.ticketTail {
		q.room.Broadcast()
	}
	if q.ended {
		return ErrClosed
	}
	return nil
}

func (q *queue) fitsLocked(size int) bool {
	p := q.pendingLocked()
	return p == 0 || p+size <= q.limit
}

func (q *queue) pendingLocked() int { return len(q.in.b) + len(q.out.b) - q.off }

// flush is the flusher: it writes while there is something to write.
func (q *queue) flush() {
	defer close(q.done)
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.ended {
		if q.busy || q.pendingLocked() == 0 {
			q.work.Wait()
			continue
		}
		q.stepLocked(q.write)
	}
}

// stepLocked writes once, without the lock. It takes everything up to the next
// record with files.
func (q *queue) stepLocked(write func([]byte, []int) (int, error)) {
	if q.off == len(q.out.b) {
		q.in, q.out, q.off = q.out, q.in, 0
	}
	chunk, fds := q.out.b[q.off:], []int(nil)
	if files := q.out.files; len(files) > 0 && files[0].at == q.off {
		fds, files = files[0].fds, files[1:]
		if len(files) > 0 {
			chunk = q.out.b[q.off:files[0].at]
		}
	} else if len(files) > 0 {
		chunk = q.out.b[q.off:files[0].at]
	}
	q.busy = true
	q.mu.Unlock()
	n, err := write(chunk, fds)
	now := time.Since(q.start)
	q.mu.Lock()
	q.busy = false
	q.last = now
	q.advanceLocked(n, fds)
	if err != nil {
		q.endLocked()
	}
	if q.ended {
		q.dropLocked(&q.out)
	}
	if q.ticketHead != q.ticketTail {
		q.room.Broadcast()
	}
}

// advanceLocked notes that n bytes left, and with the first of them fds.
func (q *queue) advanceLocked(n int, fds []int) {
	if n == 0 {
		return
	}
	if len(fds) > 0 {
		for _, fd := range fds {
			q.closeFD(fd)
		}
		q.out.files = q.out.files[1:]
	}
	if q.off += n; q.off < len(q.out.b) {
		return
	}
	if q.spare.tooBig(cap(q.out.b), len(q.out.b), queueKeep) {
		q.out.b = nil
	}
	q.out, q.off = batch{b: q.out.b[:0]}, 0
}

// end drops what has not left and fails everybody, now and later.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.endLocked()
}

func (q *queue) endLocked() {
	if q.ended {
		return
	}
	q.ended = true
	q.dropLocked(&q.in)
	if !q.busy {
		q.dropLocked(&q.out)
	}
	q.work.Signal()
	q.room.Broadcast()
}

// dropLocked releases a batch.
func (q *queue) dropLocked(b *batch) {
	for _, a := range b.files {
		for _, fd := range a.fds {
			q.closeFD(fd)
		}
	}
	*b = batch{}
	q.off = 0
}

// dupAll duplicates the files' descriptors, all or none.
func (q *queue) dupAll(files []*os.File) ([]int, error) {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		fd, err := q.dup(f)
		if err != nil {
			for _, fd := range fds {
				q.closeFD(fd)
			}
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}

// slack counts how often in a row a buffer was far too big for its use.
type slack int

// slackRounds is how many uses a big buffer survives without need, so that a
// stream of big records does not allocate for each.
const slackRounds = 16

// tooBig reports whether a buffer that has just been used should be let go.
func (s *slack) tooBig(capacity, used, keep int) bool {
	switch {
	case capacity <= keep:
		return false
	case used > keep:
		*s = 0
		return false
	}
	*s++
	if *s < slackRounds {
		return false
	}
	*s = 0
	return true
}
