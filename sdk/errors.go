package sdk

import (
	"errors"
	"fmt"
	"strconv"
)

// Code is why something failed. The set is closed and its numbers are frozen:
// they cross processes and machines. A Code is itself an error, so that
// errors.Is(err, sdk.Unavailable) works on whatever wraps one.
type Code uint8

const (
	// Unavailable: the peer did not answer, or is not there.
	Unavailable Code = 1
	// Refused: the peer answered, and said no.
	Refused Code = 2
	// PluginExited: the plugin's process is gone.
	PluginExited Code = 3
	// TooLarge: over a limit, which the message names.
	TooLarge Code = 4
	// Backpressure: no room, for now.
	Backpressure Code = 5
	// Busy: in use, or under way, or too many.
	Busy Code = 6
	// Unsupported: not here (hardware, platform, ability).
	Unsupported Code = 7
	// StaleCapability: the memory's capability is no longer valid.
	StaleCapability Code = 8
	// SessionUnknown: the receiver does not hold the session.
	SessionUnknown Code = 9
	// PeerRestarted: the peer is a new incarnation.
	PeerRestarted Code = 10
	// DeadlineExceeded: the time given for it is over.
	DeadlineExceeded Code = 11
	// InvalidArgument: the caller's mistake, which the message names.
	InvalidArgument Code = 12
	// Closed: the object was closed.
	Closed Code = 13
	// NotSent: an ended request that never left; it is safe to send it again.
	NotSent Code = 14
	// DeliveryUnknown: an ended request that may still be delivered, at most
	// once.
	DeliveryUnknown Code = 15
	// OutcomeUnknown: an ended transfer whose effect is not known.
	OutcomeUnknown Code = 16
)

var codeNames = [...]string{
	Unavailable: "unavailable", Refused: "refused", PluginExited: "plugin exited",
	TooLarge: "too large", Backpressure: "backpressure", Busy: "busy",
	Unsupported: "unsupported", StaleCapability: "stale capability",
	SessionUnknown: "session unknown", PeerRestarted: "peer restarted",
	DeadlineExceeded: "deadline exceeded", InvalidArgument: "invalid argument",
	Closed: "closed", NotSent: "not sent", DeliveryUnknown: "delivery unknown",
	OutcomeUnknown: "outcome unknown",
}

// Error returns the code's name.
func (c Code) Error() string {
	if c.Valid() {
		return codeNames[c]
	}
	return "code-" + itoa(int(c))
}

// Valid reports whether c is one of the closed set.
func (c Code) Valid() bool { return c >= Unavailable && c <= OutcomeUnknown }

// Error is a failure with a code. It matches its code, and its cause, with
// errors.Is.
type Error struct {
	Code Code
	// Message says what happened, to what, and what to do.
	Message string
	// Cause is an underlying error of this process; it does not cross to
	// another one, where Message holds its text.
	Cause error
}

// Errorf makes an Error. A %w verb sets the cause.
func Errorf(c Code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: c, Message: wrapped.Error(), Cause: errors.Unwrap(wrapped)}
}

// Error returns the message, or the code's name if there is none.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.Error()
	}
	return e.Message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is e's code.
func (e *Error) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}

// CodeOf returns the code of the outermost coded error in err's tree, or 0.
func CodeOf(err error) Code {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return 0
}

func itoa(i int) string { return strconv.Itoa(i) }
