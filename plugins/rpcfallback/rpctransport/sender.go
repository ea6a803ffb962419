package rpctransport

import (
	"errors"
	"io"
	"sync"

	"github.com/hawser-transport/hawser/plugins/internal/receipt"
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport/pb"
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

// sender is an endpoint's sending half: a bounded queue of packs and a
// goroutine that sends them. It also holds the endpoint's end.
type sender struct {
	kick chan struct{} // wakes run, holds one
	done chan struct{} // closed when the endpoint has ended

	mu          sync.Mutex
	ended       bool
	cause       error
	queue       []*pack
	queued      int
	telling     bool // the receipt goes out, with company or without
	outstanding receipt.Outstanding
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
		if k := len(s.queue); k == 0 || !s.queue[k-1].room(len(f.Data)) {
			s.queue = append(s.queue, new(pack))
		}
		s.queued += s.queue[len(s.queue)-1].add(f.Data)
		s.outstanding.Push(f.ID)
		n++
	}
	if n > 0 {
		s.wake()
	}
	return n, err
}

func (s *sender) admitLocked(data []byte) error {
	switch {
	case s.ended:
		return errClosed
	case len(data) > maxFrame:
		return errTooLarge
	case s.outstanding.Len() >= maxInflight, s.queued > 0 && s.queued+len(data) > inflightBytes:
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
func (s *sender) run(send func(*pb.Packet) error) {
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
func (s *sender) next() *pb.Packet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.queue) == 0 && !s.telling && !s.owed.Due() {
		return nil
	}
	p := new(pb.Packet)
	if s.owed.Any() {
		p.Taken = s.owed.Take()
		if len(s.queue) > 0 {
			s.delay.Carried()
		}
	}
	s.telling = false
	if len(s.queue) > 0 {
		p.Frames = s.queue[0].b
		s.queued -= len(p.Frames)
		s.queue[0] = nil
		s.queue = s.queue[1:]
	}
	return p
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

// withdraw takes back, after the end, every frame that was not given to the
// stream. It returns the endpoint's cause.
func (s *sender) withdraw() ([]sdk.Completion, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	frames := 0
	for _, p := range s.queue {
		frames += p.frames
	}
	s.queue, s.queued = nil, 0
	return s.outstanding.Withdraw(frames, sdk.CodeOf(s.cause), nil), s.cause
}
