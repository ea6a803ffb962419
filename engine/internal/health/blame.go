package health

import "github.com/hawser-transport/hawser/sdk"

// Kind is what went wrong on a path. [Blame] says which of them are the
// path's fault.
type Kind uint8

const (
	// EndpointEnded: a connected endpoint ended by itself.
	EndpointEnded Kind = iota + 1
	// Refused: the peer answered a bootstrap with no.
	Refused
	// ConnectFailed: the peer's engine answered, and the transport could not
	// connect all the same.
	ConnectFailed
	// NotPosted: the transport did not take frames, for another reason than
	// room. It is told once per call of the transport, not per frame.
	NotPosted
	// AckTimeout: a frame's ack is overdue.
	AckTimeout

	// Flushed: an endpoint that ends reports that a frame may have left.
	Flushed
	// PluginExited: the plugin's process is gone, which is its supervisor's
	// business.
	PluginExited
	// ControlSilent: the peer's control plane did not answer, which is
	// [Peers]' business. Otherwise failing fast would pause healthy paths.
	ControlSilent
	// NoRoom: the receiver has none (room 0), or the endpoint takes nothing
	// more for now.
	NoRoom
	// RemoteAccess: the peer's memory may not be accessed (any more).
	RemoteAccess
	// OwnDoing: an engine's own, here or there: closed, replaced, under way
	// already, meant for another life, over a limit.
	OwnDoing
)

// Facts are what an ack timeout is judged by. They say that everything but the
// path works.
type Facts struct {
	// PeerAnswers: its control plane has answered since the frame was sent.
	PeerAnswers bool
	// HasRoom: the receiver has room for the frame.
	HasRoom bool
	// OtherAcked: a frame that was last sent over another path has been acked
	// since.
	OtherAcked bool
}

// Blame reports whether a failure counts against its path. A frame that
// vanishes may be the fault of the peer (frozen), of its reader (no room), or
// of everything between the two hosts; only if the peer answers, has room, and
// acks what comes over another path, it is this path's.
func Blame(k Kind, f Facts) bool {
	switch k {
	case EndpointEnded, Refused, ConnectFailed, NotPosted:
		return true
	case AckTimeout:
		return f.PeerAnswers && f.HasRoom && f.OtherAcked
	default:
		return false
	}
}

// EndKind sorts the error with which an endpoint ended.
func EndKind(err error) Kind { return common(err, EndpointEnded) }

// SendKind sorts the error of frames that a transport did not take.
func SendKind(err error) Kind {
	switch sdk.CodeOf(err) {
	case sdk.TooLarge, sdk.InvalidArgument:
		return OwnDoing
	}
	return common(err, NotPosted)
}

// ConnectKind sorts the error of a bootstrap. silent is whether it failed since
// the peer's control plane did not answer, or is marked.
func ConnectKind(err error, silent bool) Kind {
	if silent {
		return ControlSilent
	}
	switch sdk.CodeOf(err) {
	case sdk.Refused:
		return Refused
	case sdk.Busy, sdk.SessionUnknown:
		return OwnDoing
	}
	return common(err, ConnectFailed)
}

func common(err error, otherwise Kind) Kind {
	switch sdk.CodeOf(err) {
	case sdk.PluginExited:
		return PluginExited
	case sdk.Backpressure:
		return NoRoom
	case sdk.StaleCapability:
		return RemoteAccess
	case sdk.Closed, sdk.PeerRestarted:
		return OwnDoing
	}
	return otherwise
}
