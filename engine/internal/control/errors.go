package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-transport/hawser/sdk"
)

// origin says where a failed call's error comes from. It is the cause of the
// [sdk.Error] that a client returns, so that it survives wrapping but never
// crosses to another process, where it would be somebody else's news.
type origin struct {
	kind  originKind
	cause error
}

type originKind uint8

const (
	// fromHere: the call was not made, or the caller gave up on it. It says
	// nothing of the peer.
	fromHere originKind = iota
	// fromPeer: the peer answered.
	fromPeer
	// fromSilence: nothing came back.
	fromSilence
	// fromKernel: the peer's host refused the connection.
	fromKernel
)

func (o *origin) Error() string {
	if o.cause != nil {
		return o.cause.Error()
	}
	return "no cause"
}

func (o *origin) Unwrap() error { return o.cause }

func kindOf(err error) originKind {
	var o *origin
	if errors.As(err, &o) {
		return o.kind
	}
	return fromHere
}

// Answered reports whether err is the peer's answer: a refusal, whatever its
// code, even [sdk.Unavailable] said of something else. A peer that answers is
// alive.
func Answered(err error) bool { return kindOf(err) == fromPeer }

// Silent reports whether err means that the peer did not answer: the call's
// deadline passed, or no connection could be made or kept. It is false if the
// caller cancelled the call.
func Silent(err error) bool { return kindOf(err) == fromSilence }

// Gone reports whether err means that nothing listens on the peer's port any
// more: its process is dead, not silent.
func Gone(err error) bool { return kindOf(err) == fromKernel }

// callError makes a client's error. The message names the call and the peer.
func callError(kind originKind, code sdk.Code, method, address, text string, cause error) *sdk.Error {
	return &sdk.Error{
		Code:    code,
		Message: fmt.Sprintf("%s to %s: %s", method, address, text),
		Cause:   &origin{kind: kind, cause: cause},
	}
}

// contextEnded is the error of a call whose context ended before an answer
// came. A deadline is the peer's silence; a cancellation is the caller's wish.
func contextEnded(ctx context.Context, method, address string) *sdk.Error {
	err := ctx.Err()
	if errors.Is(err, context.Canceled) {
		return callError(fromHere, sdk.DeadlineExceeded, method, address, "the caller gave up", err)
	}
	return callError(fromSilence, sdk.Unavailable, method, address, "no answer in time", err)
}

func peerGone(method, address string, cause error) *sdk.Error {
	return callError(fromKernel, sdk.Unavailable, method, address, "nothing listens there (connection refused)", cause)
}

// invalidReply is the error of a reply that fails the checks. The peer is
// alive, and nothing of the reply may be used.
func invalidReply(method, address string, err error) *sdk.Error {
	return callError(fromPeer, sdk.Refused, method, address, "the peer's reply is invalid: "+err.Error(), nil)
}

func clientClosed(method, address string) *sdk.Error {
	return callError(fromHere, sdk.Closed, method, address, "the client is closed", nil)
}

// answer is what of a handler's error crosses to the caller: a code of the
// closed set and a bounded message.
func answer(err error) (sdk.Code, string) {
	code := sdk.CodeOf(err)
	switch {
	case code.Valid():
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		code = sdk.DeadlineExceeded
	default:
		code = sdk.Refused
	}
	return code, bounded(err.Error(), maxMessage)
}
