package engine

import (
	"fmt"
	"strings"

	"github.com/hawser-transport/hawser/sdk"
)

// Code is why something failed: a closed set that survives the wire and
// matches with errors.Is.
type Code = sdk.Code

// The codes, as in package sdk, so that embedders import this package only.
const (
	Unavailable      = sdk.Unavailable
	Refused          = sdk.Refused
	PluginExited     = sdk.PluginExited
	TooLarge         = sdk.TooLarge
	Backpressure     = sdk.Backpressure
	Busy             = sdk.Busy
	Unsupported      = sdk.Unsupported
	StaleCapability  = sdk.StaleCapability
	SessionUnknown   = sdk.SessionUnknown
	PeerRestarted    = sdk.PeerRestarted
	DeadlineExceeded = sdk.DeadlineExceeded
	InvalidArgument  = sdk.InvalidArgument
	Closed           = sdk.Closed
	NotSent          = sdk.NotSent
	DeliveryUnknown  = sdk.DeliveryUnknown
	OutcomeUnknown   = sdk.OutcomeUnknown
)

// maxAttempts bounds the attempts that one error lists; the count goes on.
const maxAttempts = 8

// Attempt is one way that was tried for a notification, and why it did not
// lead to an end.
type Attempt struct {
	// Transport and Path name the way; Path is empty where the transport as a
	// whole, and Transport where the peer's control plane, could not be used.
	Transport, Path string
	// Reason says what happened.
	Reason string
}

// String returns the attempt as "transport/path: reason".
func (a Attempt) String() string { return a.way() + ": " + a.Reason }

// way is "transport/path", or what else could not be used.
func (a Attempt) way() string {
	way := a.Transport
	if way == "" {
		way = "control plane"
	}
	if a.Path != "" && a.Path != sdk.MainPath {
		way += "/" + a.Path
	}
	return way
}

// DeliveryError is how a notification failed. errors.Is matches both Code and
// the code of Cause.
type DeliveryError struct {
	// Peer is the name that Notify was given.
	Peer string
	// Code is NotSent if no copy ever left, so that it is safe to send the
	// notification again, or DeliveryUnknown if one may still be delivered,
	// at most once.
	Code Code
	// Cause is what ended it.
	Cause error
	// Attempts lists the ways tried, the first and the last ones if there
	// were more than eight; Tried is how many there were.
	Attempts []Attempt
	Tried    int
}

// Error says what happened to whom, whether a copy may arrive, and every
// attempt.
func (e *DeliveryError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "notification to %s: %v (%v", e.Peer, e.Cause, e.Code)
	if e.Code == NotSent {
		b.WriteString(": no copy left this host")
	} else {
		b.WriteString(": a copy may still arrive, at most once")
	}
	b.WriteString(")")
	writeAttempts(&b, "tried", e.Attempts, e.Tried)
	return b.String()
}

// writeAttempts lists the attempts that are kept of so many.
func writeAttempts(b *strings.Builder, what string, list []Attempt, tried int) {
	for i, a := range list {
		if i == 0 {
			b.WriteString("; " + what + " ")
		} else {
			b.WriteString(", ")
		}
		b.WriteString(a.String())
	}
	if more := tried - len(list); more > 0 {
		fmt.Fprintf(b, ", and %d more", more)
	}
}

// Unwrap returns the cause.
func (e *DeliveryError) Unwrap() error { return e.Cause }

// Is reports whether target is the error's code.
func (e *DeliveryError) Is(target error) bool {
	c, ok := target.(Code)
	return ok && c == e.Code
}
