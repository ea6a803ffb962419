package rpctransport

import (
	"errors"
	"io"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
)

// stream is either side's end of a gRPC stream.
type stream interface {
	SendMsg(any) error
	RecvMsg(any) error
}

// endpoint is one end of a stream for frames. Its run goroutine is the only one that
// calls the handler.
type endpoint struct {
	t       *Transport
	handler sdk.Handler
	peer    string // for messages
	out     *sender
	arrived chan stream // an accepted endpoint's, holds one
}

func newEndpoint(t *Transport, target sdk.Target, h sdk.Handler) *endpoint {
	return &endpoint{
		t: t, handler: h, peer: bootstrap.PeerName(target),
		out: newSender(&t.Life.Tasks), arrived: make(chan stream, 1),
	}
}

// Send implements [sdk.Endpoint]. Frames always wait for company: that of the
// message which is on its way.
func (e *endpoint) Send(frames []sdk.Frame, _ bool) (int, error) { return e.out.send(frames) }

// Close implements [sdk.Endpoint].
func (e *endpoint) Close() { e.End(errClosed) }

// Arrive implements end.
func (e *endpoint) Arrive(s stream) { e.arrived <- s }

// Done implements end.
func (e *endpoint) Done() <-chan struct{} { return e.out.done }

// End ends it for a reason.
func (e *endpoint) End(cause error) { e.out.end(cause) }

// await is an accepted endpoint's goroutine until its peer arrives.
func (e *endpoint) await(token bootstrap.Token, patience time.Duration) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case s := <-e.arrived:
		// The server's method returns when the endpoint ends, and that ends
		// the stream.
		e.run(s, func() {})
		return
	case <-timer.C:
		e.out.end(sdk.Errorf(sdk.Unavailable, "%s did not connect within %s", e.peer, patience))
	case <-e.out.done:
	}
	e.t.Pending.Remove(token) // a stream that has claimed it sees the end
	e.finish()
}

// run carries the stream's traffic until the endpoint ends. cancel ends the
// stream.
func (e *endpoint) run(s stream, cancel func()) {
	sent := make(chan struct{})
	e.t.Life.Tasks.Go(func() {
		defer close(sent)
		e.out.run(s.SendMsg)
	})
	e.t.Life.Tasks.Go(func() {
		<-e.out.done
		cancel()
	})
	e.out.end(e.read(s))
	<-sent
	e.finish()
}

func (e *endpoint) finish() {
	cs, cause := e.out.withdraw()
	if len(cs) > 0 {
		e.handler.Completed(cs)
	}
	e.t.Life.Forget(e)
	e.handler.Ended(cause)
}

// read hands over what comes until the stream ends, and says why it did.
func (e *endpoint) read(s stream) error {
	var (
		in     intake
		p      packet
		cs     []sdk.Completion
		frames [][]byte
	)
	defer p.release()
	for {
		err := s.RecvMsg(&p)
		if errors.Is(err, io.EOF) {
			return sdk.Errorf(sdk.Unavailable, "%s closed the stream", e.peer)
		}
		if err != nil {
			return sdk.Errorf(sdk.Unavailable, "the stream to %s broke: %w", e.peer, err)
		}
		if p.taken > 0 {
			if cs, err = e.out.receipted(p.taken, cs[:0]); err != nil {
				return err
			}
			if len(cs) > 0 {
				e.handler.Completed(cs)
			}
		}
		if frames, err = in.take(&p, frames[:0]); err != nil {
			return err
		}
		if n := len(frames); n > 0 {
			bytes := 0
			for _, f := range frames {
				bytes += len(f)
			}
			e.handler.Received(frames)
			e.out.taken(n, bytes)
			clear(frames) // a large one is not kept
		}
		p.release()
	}
}

// intake turns packets into frames.
type intake struct{ assembly assembly }

// take appends a packet's frames, which alias it. A large one is behind those
// of its last chunk's packet.
func (in *intake) take(p *packet, frames [][]byte) ([][]byte, error) {
	frames, err := unpack(p.frames, frames)
	if err != nil {
		return frames, err
	}
	whole, err := in.assembly.take(p.large, p.chunk)
	if whole != nil {
		frames = append(frames, whole)
	}
	return frames, err
}
