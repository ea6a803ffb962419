package control

import (
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
)

// grpcCodes give a refusal a status code that gRPC tools understand. Engines
// go by the Error in the status's details, whose presence says that the peer's
// engine, and not a library or a kernel on the way, has answered.
var grpcCodes = map[sdk.Code]codes.Code{
	sdk.Unavailable:      codes.Unavailable,
	sdk.TooLarge:         codes.ResourceExhausted,
	sdk.Backpressure:     codes.ResourceExhausted,
	sdk.Busy:             codes.ResourceExhausted,
	sdk.Unsupported:      codes.Unimplemented,
	sdk.SessionUnknown:   codes.NotFound,
	sdk.DeadlineExceeded: codes.DeadlineExceeded,
	sdk.InvalidArgument:  codes.InvalidArgument,
}

// statusOf is how a handler's error travels.
func statusOf(err error) error {
	code, text := answer(err)
	as, ok := grpcCodes[code]
	if !ok {
		as = codes.FailedPrecondition
	}
	s, err := status.New(as, bounded(text, maxStatusText)).WithDetails(&pb.Error{Code: uint32(code), Message: text})
	if err != nil {
		return status.Error(as, "the error's details could not be encoded")
	}
	return s.Err()
}

// maxStatusText bounds the copy of the message that is only for gRPC tools.
const maxStatusText = 256

// isForeign reports whether a status is the gRPC library's word for an HTTP
// server that knows no gRPC.
func isForeign(s *status.Status) bool {
	return len(s.Details()) == 0 && (strings.Contains(s.Message(), "unexpected HTTP status code") ||
		strings.Contains(s.Message(), "content-type"))
}

// answerOf returns the refusal that a status carries; ok is false if it comes
// from something other than the peer's engine.
func answerOf(s *status.Status) (e *sdk.Error, ok bool) {
	for _, d := range s.Details() {
		m, isError := d.(*pb.Error)
		if !isError {
			continue
		}
		code, text := sdk.Code(m.GetCode()), bounded(m.GetMessage(), maxMessage)
		if m.GetCode() > 255 || !code.Valid() {
			return sdk.Errorf(sdk.Refused, "code %d: %s", m.GetCode(), text), true
		}
		return &sdk.Error{Code: code, Message: text}, true
	}
	text := bounded(s.Message(), maxMessage)
	switch s.Code() {
	case codes.Unimplemented:
		return sdk.Errorf(sdk.Unsupported, "the peer does not have this call: %s", text), true
	case codes.ResourceExhausted:
		return sdk.Errorf(sdk.TooLarge, "%s", text), true
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return nil, false
	default:
		// Whatever is there answers, but not as an engine does.
		return sdk.Errorf(sdk.Refused, "not an answer of an engine: %v: %s", s.Code(), text), true
	}
}
