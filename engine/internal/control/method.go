package control

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"
)

// none is the reply of the calls that have nothing to say.
type none struct{}

func (none) clone() none                  { return none{} }
func (none) checkFor(ChangeRequest) error { return nil }

// goodbyeReply is apart from none only since a reply is checked against its
// own kind of request.
type goodbyeReply struct{}

func (goodbyeReply) clone() goodbyeReply           { return goodbyeReply{} }
func (goodbyeReply) checkFor(GoodbyeRequest) error { return nil }

// fenceReply likewise.
type fenceReply struct{}

func (fenceReply) clone() fenceReply           { return fenceReply{} }
func (fenceReply) checkFor(FenceRequest) error { return nil }

// request and reply are what both carriers know of a message: how to check it
// and how to copy it so that nothing is shared between two engines.
type request[Q any] interface {
	check() error
	clone() Q
}

type reply[Q, R any] interface {
	checkFor(Q) error
	clone() R
}

// method is one call of the control plane.
type method[Q request[Q], R reply[Q, R]] struct {
	name string
	// timeout is the deadline of a call whose context has none.
	timeout func(Timeouts) time.Duration
	call    func(context.Context, Handler, Q) (R, error)
}

var (
	hello = method[HelloRequest, HelloReply]{"hello", requestTimeout,
		func(ctx context.Context, h Handler, q HelloRequest) (HelloReply, error) { return h.Hello(ctx, q) }}
	bootstrap = method[BootstrapRequest, BootstrapReply]{"bootstrap", bootstrapTimeout,
		func(ctx context.Context, h Handler, q BootstrapRequest) (BootstrapReply, error) {
			return h.Bootstrap(ctx, q)
		}}
	probe = method[ProbeRequest, ProbeReply]{"probe", probeTimeout,
		func(ctx context.Context, h Handler, q ProbeRequest) (ProbeReply, error) { return h.Probe(ctx, q) }}
	changed = method[ChangeRequest, none]{"changed", requestTimeout,
		func(ctx context.Context, h Handler, q ChangeRequest) (none, error) { return none{}, h.Changed(ctx, q) }}
	goodbye = method[GoodbyeRequest, goodbyeReply]{"goodbye", requestTimeout,
		func(ctx context.Context, h Handler, q GoodbyeRequest) (goodbyeReply, error) {
			return goodbyeReply{}, h.Goodbye(ctx, q)
		}}
	fence = method[FenceRequest, fenceReply]{"fence", requestTimeout,
		func(ctx context.Context, h Handler, q FenceRequest) (fenceReply, error) {
			return fenceReply{}, h.Fence(ctx, q)
		}}
	describe = method[DescribeRequest, DescribeReply]{"describe", requestTimeout,
		func(ctx context.Context, h Handler, q DescribeRequest) (DescribeReply, error) {
			return h.Describe(ctx, q)
		}}
	invalidate = method[InvalidateRequest, InvalidateReply]{"invalidate", requestTimeout,
		func(ctx context.Context, h Handler, q InvalidateRequest) (InvalidateReply, error) {
			return h.Invalidate(ctx, q)
		}}
)

// Timeouts are the deadlines of calls whose context has none. Zero means the
// default.
type Timeouts struct {
	Request   time.Duration // 30 s
	Bootstrap time.Duration // 30 s
	Probe     time.Duration // 2 s
	// Connect bounds how long a call waits for a connection. 30 s.
	Connect time.Duration
}

func (t Timeouts) withDefaults() Timeouts {
	for _, d := range []*time.Duration{&t.Request, &t.Bootstrap, &t.Connect} {
		if *d <= 0 {
			*d = 30 * time.Second
		}
	}
	if t.Probe <= 0 {
		t.Probe = 2 * time.Second
	}
	return t
}

func requestTimeout(t Timeouts) time.Duration   { return t.Request }
func bootstrapTimeout(t Timeouts) time.Duration { return t.Bootstrap }
func probeTimeout(t Timeouts) time.Duration     { return t.Probe }

// withDeadline gives ctx the method's deadline if it has none.
func withDeadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, d)
}

func cloneTransports(ts []Transport) []Transport {
	if len(ts) == 0 {
		return nil
	}
	out := make([]Transport, len(ts))
	for i, t := range ts {
		if t.Attributes = maps.Clone(t.Attributes); len(t.Attributes) == 0 {
			t.Attributes = nil
		}
		out[i] = t
	}
	return out
}

// cloneBytes, like a wire, does not tell empty from nil.
func cloneBytes(b []byte) []byte {
	if len(b) == 0 {
		return nil
	}
	return bytes.Clone(b)
}

// clone drops the monotonic clock reading, as a wire does.
func (n Node) clone() Node {
	n.Started = time.Unix(0, n.Started.UnixNano())
	return n
}

func (r HelloRequest) clone() HelloRequest {
	r.From, r.Transports = r.From.clone(), cloneTransports(r.Transports)
	return r
}

func (r HelloReply) clone() HelloReply {
	r.Node, r.Transports = r.Node.clone(), cloneTransports(r.Transports)
	return r
}

func (r BootstrapRequest) clone() BootstrapRequest {
	r.Offer = cloneBytes(r.Offer)
	return r
}

func (r BootstrapReply) clone() BootstrapReply {
	r.Answer = cloneBytes(r.Answer)
	return r
}

func (r ProbeRequest) clone() ProbeRequest { return r }

func (r ProbeReply) clone() ProbeReply {
	r.Node = r.Node.clone()
	return r
}

func (r ChangeRequest) clone() ChangeRequest {
	r.Transports = cloneTransports(r.Transports)
	return r
}

func (r GoodbyeRequest) clone() GoodbyeRequest {
	r.LastAck = bytes.Clone(r.LastAck)
	return r
}

func (r FenceRequest) clone() FenceRequest { return r }

func (r DescribeRequest) clone() DescribeRequest { return r }

func (r DescribeReply) clone() DescribeReply {
	r.Descriptor = cloneBytes(r.Descriptor)
	return r
}

func (r InvalidateRequest) clone() InvalidateRequest {
	r.Withdrawn = slices.Clone(r.Withdrawn)
	return r
}

func (r InvalidateReply) clone() InvalidateReply {
	r.Leased = slices.Clone(r.Leased)
	return r
}
