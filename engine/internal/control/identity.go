package control

import (
	"context"
	"errors"

	"github.com/hawser-transport/hawser/sdk"
)

// ErrAnother is in the error of a call that was answered, but under another
// certificate than that of the peer which the client is bound to. The peer
// itself is not there any more.
var ErrAnother = errors.New("another certificate answers")

// bound is the error of an answer that the peer of a client's binding did not
// give, or nil.
func bound(to, identity, method, address string) error {
	if to == "" || to == identity {
		return nil
	}
	return callError(fromPeer, sdk.PeerRestarted, method, address,
		"the certificate of "+bounded(identity, maxMessage/4)+" is there now, not that of "+to, ErrAnother)
}

// witnessed is a reply that wants to know who gave it.
type witnessed interface{ saidBy(identity string) }

func (r *HelloReply) saidBy(identity string) { r.Identity = identity }

func witness[R any](r *R, identity string) {
	if w, ok := any(r).(witnessed); ok {
		w.saidBy(identity)
	}
}

type callerKey struct{}

func withCaller(ctx context.Context, identity string) context.Context {
	return context.WithValue(ctx, callerKey{}, identity)
}

// Caller is whose certificate the connection bears on which the call came that
// a [Handler] is given ctx for; empty without TLS.
func Caller(ctx context.Context) string {
	identity, _ := ctx.Value(callerKey{}).(string)
	return identity
}
