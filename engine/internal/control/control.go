// Package control is the control plane: calls between two engines, off the
// hot path. It carries hello, bootstrap messages, probes, changes of
// transports, descriptors of memory, fences and goodbye. Its carrier is an interface, so that the engine also
// runs over an in-memory one in fake time.
package control

import (
	"context"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// MaxDescriptor is the size in bytes of the largest descriptor of memory.
const MaxDescriptor = 4 << 20

// Node is how an engine introduces itself.
type Node struct {
	Name        string
	Address     string // where its control plane can be reached
	Incarnation sdk.Incarnation
	// Started is when the engine opened. Of two incarnations at one address
	// the later one is alive.
	Started time.Time
}

// Transport is one transport that an engine runs.
type Transport struct {
	Name       string
	Instance   uint64
	Attributes sdk.Attributes
	MaxFrame   int
	// Down names paths to the receiver that the transport does not list now.
	Down []string
	// Lost names endpoints with the receiver whose end here is gone.
	Lost []Lost
}

// Lost is an endpoint whose end at the sender is gone, the latest of its path.
type Lost struct {
	Path       string
	Generation uint64
}

// Room is how far a sender may go: the highest sequence number, and the bytes
// that its sent and unresolved entries may reach.
type Room struct {
	Seq   uint64
	Bytes uint64
}

// HelloRequest opens or renews a session towards the receiver.
type HelloRequest struct {
	From       Node
	Proto      int
	Session    uint64 // proposed by the sender, never 0
	Replaces   uint64 // the held session that the proposal replaces, or 0
	Transports []Transport
	Version    uint64 // of Transports; grows
}

// HelloReply names the session that the receiver holds.
type HelloReply struct {
	Node Node
	// Identity is whose certificate the connection bore, empty without TLS.
	// It comes from the client, not from the peer.
	Identity   string
	Proto      int
	Session    uint64
	Room       Room
	Transports []Transport
	Version    uint64
}

// BootstrapRequest carries a transport's offer.
type BootstrapRequest struct {
	From, To     sdk.Incarnation
	Transport    string
	FromInstance uint64
	ToInstance   uint64
	Path         string
	Generation   uint64
	Offer        []byte
	Use          sdk.Use
	Lane         int // of those for memory
}

// BootstrapReply carries the peer's transport's answer, or says that the
// offer's generation is not newer than one that the peer has seen.
type BootstrapReply struct {
	Answer []byte
	// Newest is 0 if the offer was accepted.
	Newest uint64
}

// ProbeRequest asks who is there.
type ProbeRequest struct{ From sdk.Incarnation }

// ProbeReply says so.
type ProbeReply struct{ Node Node }

// ChangeRequest tells a peer which transports are up now.
type ChangeRequest struct {
	From       sdk.Incarnation
	Transports []Transport
	Version    uint64
}

// GoodbyeRequest says that the sender's incarnation ends.
type GoodbyeRequest struct {
	From sdk.Incarnation
	// LastAck is a CTRL_ACK frame that acknowledges all that the sender has
	// received of its peer, or empty: acks that are still under way over a
	// transport would come too late.
	LastAck []byte
	// Mapped says that a process of the sender's does not die, and may map
	// memory that the receiver has exported.
	Mapped bool
}

// FenceRequest asks for the end of an endpoint for memory, and of every older
// one of the same transport, path and lane. It is answered once nothing of the
// receiver's carries out anything more that came over it.
type FenceRequest struct {
	From, To   sdk.Incarnation
	Transport  string
	Path       string
	Lane       int
	Generation uint64
}

// DescribeRequest asks for the descriptor of the receiver's memory.
type DescribeRequest struct {
	From, To sdk.Incarnation
	// Known is the version that the sender has, or 0.
	Known uint64
}

// DescribeReply holds it.
type DescribeReply struct {
	Version uint64 // never 0
	// Descriptor is empty if Version is the one that was known.
	Descriptor []byte
}

// InvalidateRequest tells who has the sender's descriptor that it has changed.
// To is who that is, zero in requests of older senders.
type InvalidateRequest struct {
	From, To  sdk.Incarnation
	Version   uint64
	Withdrawn []sdk.Capability
}

// InvalidateReply tells which of the withdrawn capabilities the receiver still
// uses: it has ops under way that name them, or maps them.
type InvalidateReply struct{ Leased []sdk.Capability }

// Handler answers calls. Methods are called concurrently; what they return as
// an error reaches the caller as a [sdk.Error] with the same code.
type Handler interface {
	Hello(ctx context.Context, req HelloRequest) (HelloReply, error)
	Bootstrap(ctx context.Context, req BootstrapRequest) (BootstrapReply, error)
	Probe(ctx context.Context, req ProbeRequest) (ProbeReply, error)
	Fence(ctx context.Context, req FenceRequest) error
	Describe(ctx context.Context, req DescribeRequest) (DescribeReply, error)
	Invalidate(ctx context.Context, req InvalidateRequest) (InvalidateReply, error)
	Changed(ctx context.Context, req ChangeRequest) error
	Goodbye(ctx context.Context, req GoodbyeRequest) error
}

// Client calls one peer's engine. A call whose context has no deadline gets
// the default one of [Timeouts]. Errors are [sdk.Error]s: what the peer
// answered keeps its code and makes [Answered] true; if nothing came back the
// code is [sdk.Unavailable] and [Silent] is true, or [Gone] if the peer's host
// refused the connection. An error for which none of the three is true was
// made here (a wrong argument, a closed client, a cancelled context) and says
// nothing of the peer.
type Client interface {
	Handler
	// Bind says whose certificate the peer bears. A call that is answered over
	// a connection of another one's fails with [ErrAnother], whatever the
	// answer was.
	Bind(identity string)
	// ResetBackoff makes a connection that waits to be tried again be tried
	// now.
	ResetBackoff()
	// Close ends the calls under way with [sdk.Closed]. It is idempotent.
	Close() error
}

// Carrier makes the control plane.
type Carrier interface {
	// Listen serves h and returns the address on which it does. It is called
	// once.
	Listen(h Handler) (address string, err error)
	// Dial returns a client for an address. It does no I/O; connecting is
	// part of the first call.
	Dial(address string) Client
	// Close ends every client and the server. It waits for the calls being
	// served, but not longer than ctx. It is idempotent.
	Close(ctx context.Context) error
}
