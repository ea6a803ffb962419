package sdk

import "context"

// Notifier is the ability to carry frames to a peer.
//
// A path is one way to a peer inside a transport: the one address for stream
// sockets, a pair of a port here and a port there for RDMA. The transport
// lists paths, the engine picks.
type Notifier interface {
	// Paths returns the paths to a peer that published these attributes,
	// best first, at most 64. It does no I/O. Names are stable, since the
	// engine keeps a path's health under its name, and symmetric: both ends
	// give a path the same name, since an endpoint carries both ways,
	// whichever side connected it. A transport with one path calls it
	// [MainPath]. An error means that the attributes cannot be used. If the
	// same attributes get another answer later, [Config.PathsChanged] says so.
	Paths(remote Attributes) ([]string, error)

	// Connect makes an endpoint to the target. It calls exchange at most once,
	// with an offer for the peer's transport (at most 64 KiB), and gets the
	// peer's answer: the engine carries both over its control plane. It
	// returns once the endpoint can carry frames, or with an error, after
	// which the endpoint does not exist and h is not called.
	//
	// It runs on a goroutine of its own and may block as long as ctx; it must
	// not block other endpoints meanwhile.
	Connect(ctx context.Context, t Target, exchange Exchange, h Handler) (Endpoint, error)

	// Accept makes the passive end for a peer's offer and returns the answer.
	// It returns at once: the endpoint may be used before the peer's end has
	// arrived, the transport holds what is sent until then, and ends the
	// endpoint with [Unavailable] if the peer does not arrive within the
	// transport's documented time.
	Accept(ctx context.Context, t Target, offer []byte, h Handler) (Endpoint, []byte, error)
}

// MainPath is the name of the path of a transport that has only one.
const MainPath = "main"

// Target names what an endpoint is bound to. Both ends of an endpoint have
// the same generation.
type Target struct {
	// Local and Peer are the incarnations of the two engines.
	Local, Peer Incarnation
	// PeerName is for logs.
	PeerName string
	// PeerIdentity is whose certificate the engines' own connection bore: a
	// transport with keys gives the endpoint no connection on which
	// mtls.Identity is another, so that whoever learns a token cannot use
	// it. Empty admits every peer that the keys do.
	PeerIdentity string
	// Path is one of those that Paths returned.
	Path string
	// Remote is what the peer's transport publishes.
	Remote Attributes
	// Use is what the endpoint is for: frames, or, for a [Mover], ops.
	Use Use
	// Lane tells apart the endpoints for memory that the engine has to the
	// same peer and path at a time, see [MoveLimits.Parallel]. 0 for frames.
	Lane int
	// Generation grows with every bootstrap of the same peer, transport,
	// path, use and lane. A transport refuses anything of an older one.
	Generation uint64
}

// Exchange carries an offer to the peer's transport and returns its answer.
// Its error has code [Refused] or [Busy] if the peer said no, [Unavailable]
// if it did not answer.
type Exchange func(ctx context.Context, offer []byte) (answer []byte, err error)

// Frame is one message. Transports carry Data as it is; they do not look
// inside.
type Frame struct {
	// ID is the engine's; it names the frame in its [Completion]. It grows
	// from frame to frame of an endpoint, beginning with 1.
	ID   uint64
	Data []byte
}

// OvertakenFrame is the largest frame, in bytes, that keeps its place among the
// others on the way.
const OvertakenFrame = 64 << 10

// Endpoint carries frames to one peer over one path, both ways.
type Endpoint interface {
	// Send takes frames, in order, and never blocks. It returns how many were
	// taken; each of those gets exactly one [Completion], unless the endpoint
	// ends first. The others never left the host, and err says why:
	// [Backpressure] if there is no room now, [TooLarge], or [Closed] once
	// the endpoint has ended. A frame may be any size up to MaxFrame,
	// including 0. Larger ones than [OvertakenFrame] may be overtaken by
	// frames behind them, so that these need not wait for all of it.
	//
	// more says that the caller will soon send again or does not mind a few
	// microseconds: the transport may wait for company, but not for ever.
	//
	// The frames and their Data belong to the caller again when Send returns.
	// Send is called by one goroutine at a time, and may run at the same time
	// as the Handler's methods.
	Send(frames []Frame, more bool) (n int, err error)

	// Close ends the endpoint. It does not wait. Handler.Ended follows, with
	// [Closed]. Close is idempotent.
	Close()
}

// Handler is the engine's end of an endpoint. Its methods are called by one
// goroutine at a time, may be called before Connect or Accept has returned,
// and may call the Endpoint's methods. Completed and Ended return soon.
type Handler interface {
	// Completed reports outcomes, each frame's once, in any order. The slice
	// belongs to the transport again on return.
	Completed(cs []Completion)

	// Received hands over frames that the peer sent, in the order in which
	// they came. The slices belong to the transport again on return.
	//
	// It returns soon, unless the engine has no room for a peer that nobody
	// acknowledges to: then it returns when a reader has made room, which may
	// take minutes, or when the endpoint ends. It blocks this endpoint and no
	// other. So a transport calls it on a goroutine that serves this endpoint
	// alone and reads nothing more of it meanwhile, so that the connection's
	// own flow control reaches the peer. Completed has to wait, too. One that
	// cannot stop reading a single endpoint calls [Offerer.Offer] instead.
	//
	// Frames whose call was under way when the endpoint was closed may not
	// have been taken: once Close has been called, the peer gets no receipt.
	Received(frames [][]byte)

	// Ended is the last call: the endpoint is gone, everything without an
	// outcome is [Unknown]. It is called exactly once, soon after Close at
	// the latest.
	Ended(err error)
}

// Offerer is what the engine's Handlers can do beside, in its process and in a
// plugin's: say that there is no room, instead of waiting for it. It is for
// transports whose endpoints share a receive queue (RDMA), which one endpoint
// must not keep from the others, and for the process boundary.
type Offerer interface {
	Handler

	// MayHold reports whether Offer can ever return true. It is constant.
	MayHold() bool

	// Offer is Received without the wait. If there is no room, the endpoint is
	// held: Offer returns true, and resume is called once, when the transport
	// should go on, but perhaps never once the endpoint has ended. Whatever
	// of the endpoint cannot be stopped is offered all the same: [HoldBytes]
	// of it are kept, the rest is dropped, and counted here. resume may be
	// called by any goroutine, also before Offer has returned, and returns
	// soon. A later call's takes the place of an earlier one's.
	//
	// Of an endpoint that is not held one frame, or several of [OfferBytes]
	// together, are kept whole: a transport that can wait offers no more at a
	// time, and nothing until resume is called.
	Offer(frames [][]byte, resume func()) (held bool)

	// Dropped counts frames that the transport itself had to drop because the
	// endpoint was held.
	Dropped(frames int)
}

// HoldBytes is how much of a held endpoint is kept. A frame counts its bytes
// and HoldOverhead, and is kept, whatever its size, while less than HoldBytes
// are. It is also the window of an endpoint on the link between an engine and
// its plugin, so that an orderly plugin's frames are always kept.
const (
	HoldBytes    = 512 << 10
	HoldOverhead = 24
)

// OfferBytes is how much may be offered at a time and is kept whole, counted as
// HoldBytes is.
const OfferBytes = HoldBytes / 4

// Completion is the outcome of one frame.
type Completion struct {
	ID      uint64
	Outcome Outcome
	// Code says why, unless the outcome is Done.
	Code Code
}

// Outcome says what became of a frame. Numbers are frozen.
type Outcome uint8

const (
	// NotPosted: nothing left the host. Any other path is safe.
	NotPosted Outcome = 1
	// Done: the peer's end of the transport has taken it. For stream
	// transports that is the peer's receipt, never that a local write
	// returned. Done says nothing of the peer's engine.
	Done Outcome = 2
	// Unknown: it may have left.
	Unknown Outcome = 3
)

// String returns the outcome's name.
func (o Outcome) String() string {
	switch o {
	case NotPosted:
		return "not posted"
	case Done:
		return "done"
	case Unknown:
		return "unknown"
	default:
		return "outcome-" + itoa(int(o))
	}
}

// Valid reports whether the outcome is one of the three.
func (o Outcome) Valid() bool { return o >= NotPosted && o <= Unknown }
