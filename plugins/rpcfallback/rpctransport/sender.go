package rpctransport

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/hawser-transport/hawser/plugins/internal/receipt"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// maxInflight bounds the frames of an endpoint that have no receipt.
	maxInflight = 4096
	// inflightBytes bounds what one endpoint queues, except that one frame
	// always fits.
	inflightBytes = 32 << 20
)

// What Send returns, made once: it is called for each frame.
var (
	errClosed   = sdk.Errorf(sdk.Closed, "the endpoint is closed")
	errFull     = sdk.Errorf(sdk.Backpressure, "the endpoint's queue is full")
	errTooLarge = sdk.Errorf(sdk.TooLarge, "the frame is larger than %d bytes", maxFrame)
)

// sender is an endpoint's sending half: a bounded queue of packs and of large
// frames, and a goroutine that sends a pack and a chunk at a time. It also
// holds the endpoint's end.
type sender struct {
	kick chan struct{} // wakes run, holds one
	done chan struct{} // closed when the endpoint has ended

	mu          sync.Mutex
	ended       bool
	cause       error
	queue       []*pack
	larges      []*large            // only the first one may have begun
	waiting     int                 // frames in both
	queued      int                 // bytes in both
	telling     bool                // the receipt goes out, with company or without
	outstanding receipt.Outstanding // in the order in which the peer takes them
	owed        receipt.Owed
	delay       receipt.Delay
}

func newSender(tasks *sync.WaitGroup) *sender {
	s := &sender{kick: make(chan struct{}, 1), done: make(chan struct{})}
	s.delay = receipt.Delay{Fire: s.tell, Tasks: tasks}
	return s
}

// send queues frames.
func (s *sender) send(frames []sdk.Frame) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range frames {
		if err = s.admitLocked(f.Data); err != nil {
			break
		}
		s.queueLocked(f)
		n++
	}
	if n > 0 {
		s.wake()
	}
	return n, err
}

func (s *sender) queueLocked(f sdk.Frame) {
	s.waiting++
	if len(f.Data) > maxPacked {
		s.larges = append(s.larges, &large{id: f.ID, data: bytes.Clone(f.Data)})
		s.queued += len(f.Data)
		return
	}
	if k := len(s.queue); k == 0 || !s.queue[k-1].room(len(f.Data)) {
		s.queue = append(s.queue, new(pack))
	}
	s.queued += s.queue[len(s.queue)-1].add(f.ID, f.Data)
}

func (s *sender) admitLocked(data []byte) error {
	switch {
	case s.ended:
		return errClosed
	case len(data) > maxFrame:
		return errTooLarge
	case s.outstanding.Len()+s.waiting >= maxInflight, s.queued > 0 && s.queued+len(data) > inflightBytes:
		return errFull
	}
	return nil
}

func (s *sender) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run sends until the endpoint ends.
func (s *sender) run(send func(any) error) {
	for {
		p := s.next()
		if p == nil {
			select {
			case <-s.kick:
				continue
			case <-s.done:
				return
			}
		}
		if err := send(p); errors.Is(err, io.EOF) {
			return // the receiving side learns why, and ends the endpoint
		} else if err != nil {
			s.end(sdk.Errorf(sdk.Unavailable, "the stream broke: %w", err))
			return
		}
	}
}

// next takes what goes into the next message, or returns nil if nothing does.
func (s *sender) next() *packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.waiting == 0 && !s.telling && !s.owed.Due() {
		return nil
	}
	p := new(packet)
	if s.owed.Any() {
		p.taken = s.owed.Take()
		if s.waiting > 0 {
			s.delay.Carried()
		}
	}
	s.telling = false
	s.nextPackLocked(p)
	s.nextChunkLocked(p)
	return p
}

func (s *sender) nextPackLocked(p *packet) {
	if len(s.queue) == 0 {
		return
	}
	p.pack, s.queue = shift(s.queue)
	s.queued -= p.pack.size
	s.waiting -= len(p.pack.ids)
	for _, id := range p.pack.ids {
		s.outstanding.Push(id)
	}
}

func (s *sender) nextChunkLocked(p *packet) {
	if len(s.larges) == 0 {
		return
	}
	l, last := s.larges[0], false
	p.large, p.chunk, last = l.next()
	s.queued -= len(p.chunk)
	if last {
		_, s.larges = shift(s.larges)
		s.waiting--
		s.outstanding.Push(l.id)
	}
}

// shift takes a queue's first. An empty queue holds no memory.
func shift[T any](queue []*T) (*T, []*T) {
	first := queue[0]
	queue[0] = nil
	if queue = queue[1:]; len(queue) == 0 {
		queue = nil
	}
	return first, queue
}

// taken notes frames that the handler has taken.
func (s *sender) taken(frames, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.owed.Add(frames, bytes)
	switch {
	case s.ended || !s.owed.Any():
	case s.owed.Due():
		s.wake()
	default:
		s.delay.Arm()
	}
}

// tell sends the receipt that has found no company.
func (s *sender) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	waited := s.delay.Fired()
	if s.ended || !s.owed.Any() {
		return
	}
	if waited {
		s.telling = true
		s.wake()
		return
	}
	s.delay.Arm()
}

// receipted takes the peer's receipt.
func (s *sender) receipted(count uint64, cs []sdk.Completion) ([]sdk.Completion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.outstanding.Receipt(count, cs)
}

// end ends the endpoint, for a cause of which only the first counts.
func (s *sender) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended, s.cause = true, cause
	s.delay.Stop()
	close(s.done)
}

// withdraw takes back, after the end, every frame of which nothing was given to
// the stream. It returns the endpoint's cause.
func (s *sender) withdraw() (cs []sdk.Completion, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	back := func(id uint64) {
		cs = append(cs, sdk.Completion{ID: id, Outcome: sdk.NotPosted, Code: sdk.CodeOf(s.cause)})
	}
	for _, p := range s.queue {
		for _, id := range p.ids {
			back(id)
		}
	}
	for _, l := range s.larges {
		if !l.begun() {
			back(l.id)
		}
	}
	s.queue, s.larges, s.waiting, s.queued = nil, nil, 0, 0
	return cs, s.cause
}
