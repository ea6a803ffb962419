package control

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/sdk"
)

// Bounds of everything that a peer may send. A peer that exceeds one gets
// [sdk.InvalidArgument] or, for sizes, [sdk.TooLarge], naming the field.
const (
	maxTransports     = 32
	maxAttributes     = 64
	maxAttributeBytes = 16 << 10
	maxOffer          = 64 << 10
	maxName           = 256
	maxTransportName  = 32
	maxPath           = 1 << 10
	maxDown           = 64 // also of lost endpoints
	maxMessage        = 2 << 10
	maxLanes          = 8
	maxWithdrawn      = 1 << 10
	// maxProto leaves room for later protocols: the smaller of both sides'
	// numbers is used, so a higher one than ours is no error.
	maxProto = math.MaxUint16
	// maxGeneration leaves room for the next ones: whoever is told of a
	// generation counts on from there.
	maxGeneration = 1 << 63
)

func missing(field string) error {
	return sdk.Errorf(sdk.InvalidArgument, "%s is missing", field)
}

func tooLarge(field string, got, limit int) error {
	return sdk.Errorf(sdk.TooLarge, "%s has %d bytes, the limit is %d", field, got, limit)
}

func checkText(field, s string, limit int) error {
	switch {
	case s == "":
		return missing(field)
	case len(s) > limit:
		return tooLarge(field, len(s), limit)
	case !utf8.ValidString(s):
		return sdk.Errorf(sdk.InvalidArgument, "%s is not valid UTF-8", field)
	}
	return nil
}

func checkBytes(field string, b []byte, limit int) error {
	if len(b) > limit {
		return tooLarge(field, len(b), limit)
	}
	return nil
}

func checkIncarnation(field string, i sdk.Incarnation) error {
	if i.IsZero() {
		return missing(field)
	}
	if i.Epoch() == 0 {
		return sdk.Errorf(sdk.InvalidArgument, "%s has a zero low half", field)
	}
	return nil
}

func checkNumber(field string, n uint64) error {
	if n == 0 {
		return missing(field)
	}
	return nil
}

func checkGeneration(field string, n uint64) error {
	if n > maxGeneration {
		return sdk.Errorf(sdk.InvalidArgument, "%s is %d, the limit is %d", field, n, uint64(maxGeneration))
	}
	return checkNumber(field, n)
}

func checkProto(field string, p, limit int) error {
	if p < 0 || p > limit {
		return sdk.Errorf(sdk.InvalidArgument, "%s is %d, allowed are 0 to %d", field, p, limit)
	}
	return nil
}

func checkStarted(field string, t time.Time) error {
	if t.IsZero() {
		return missing(field)
	}
	if y := t.Year(); y < 1970 || y > 2200 {
		return sdk.Errorf(sdk.InvalidArgument, "%s is in the year %d", field, y)
	}
	return nil
}

func checkTransportName(field, name string) error {
	if name == "" {
		return missing(field)
	}
	if len(name) > maxTransportName {
		return tooLarge(field, len(name), maxTransportName)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return sdk.Errorf(sdk.InvalidArgument, "%s %q has a byte outside [a-z0-9-]", field, name)
		}
	}
	return nil
}

func checkAttributes(field string, a sdk.Attributes) error {
	if len(a) > maxAttributes {
		return sdk.Errorf(sdk.TooLarge, "%s has %d entries, the limit is %d", field, len(a), maxAttributes)
	}
	size := 0
	for k, v := range a {
		size += len(k) + len(v)
	}
	if size > maxAttributeBytes {
		return tooLarge(field, size, maxAttributeBytes)
	}
	return nil
}

func checkTransports(field string, ts []Transport) error {
	if len(ts) > maxTransports {
		return sdk.Errorf(sdk.TooLarge, "%s has %d entries, the limit is %d", field, len(ts), maxTransports)
	}
	type key struct {
		name     string
		instance uint64
	}
	seen := make(map[key]bool, len(ts))
	for i, t := range ts {
		at := fmt.Sprintf("%s[%d]", field, i)
		if err := first(
			checkTransportName(at+".name", t.Name),
			checkNumber(at+".instance", t.Instance),
			checkAttributes(at+".attributes", t.Attributes),
		); err != nil {
			return err
		}
		if t.MaxFrame < 0 || t.MaxFrame > math.MaxInt32 {
			return sdk.Errorf(sdk.InvalidArgument, "%s.max_frame is %d", at, t.MaxFrame)
		}
		if n := len(t.Down); n > maxDown {
			return sdk.Errorf(sdk.TooLarge, "%s.down has %d entries, the limit is %d", at, n, maxDown)
		}
		for _, name := range t.Down {
			if err := checkText(at+".down", name, maxPath); err != nil {
				return err
			}
		}
		if n := len(t.Lost); n > maxDown {
			return sdk.Errorf(sdk.TooLarge, "%s.lost has %d entries, the limit is %d", at, n, maxDown)
		}
		for _, l := range t.Lost {
			if err := first(checkText(at+".lost.path", l.Path, maxPath), checkGeneration(at+".lost.generation", l.Generation)); err != nil {
				return err
			}
		}
		k := key{t.Name, t.Instance}
		if seen[k] {
			return sdk.Errorf(sdk.InvalidArgument, "%s repeats %s instance %d", at, t.Name, t.Instance)
		}
		seen[k] = true
	}
	return nil
}

func checkNode(field string, n Node) error {
	return first(
		checkText(field+".name", n.Name, maxName),
		checkText(field+".address", n.Address, maxName),
		checkIncarnation(field+".incarnation", n.Incarnation),
		checkStarted(field+".started", n.Started),
	)
}

func (r HelloRequest) check() error {
	return first(
		checkNode("from", r.From),
		checkProto("proto", r.Proto, maxProto),
		checkNumber("session", r.Session),
		checkTransports("transports", r.Transports),
	)
}

// checkFor also holds the reply against its request: a peer that answers with
// a higher protocol than was offered would be sent frames it misreads.
func (r HelloReply) checkFor(req HelloRequest) error {
	return first(
		checkNode("node", r.Node),
		checkProto("proto", r.Proto, req.Proto),
		checkNumber("session", r.Session),
		checkTransports("transports", r.Transports),
	)
}

func (r BootstrapRequest) check() error {
	return first(
		checkIncarnation("from", r.From),
		checkIncarnation("to", r.To),
		checkTransportName("transport", r.Transport),
		checkNumber("from_instance", r.FromInstance),
		checkNumber("to_instance", r.ToInstance),
		checkText("path", r.Path, maxPath),
		checkGeneration("generation", r.Generation),
		checkBytes("offer", r.Offer, maxOffer),
		checkUse(r.Use, r.Lane),
	)
}

func checkUse(u sdk.Use, lane int) error {
	if !u.Valid() {
		return sdk.Errorf(sdk.InvalidArgument, "use is %d, there are 0 (frames) and 1 (memory)", u)
	}
	if u == sdk.UseFrames && lane != 0 {
		return sdk.Errorf(sdk.InvalidArgument, "lane is %d, endpoints for frames have none", lane)
	}
	return checkLane(lane)
}

func checkLane(lane int) error {
	if lane < 0 || lane >= maxLanes {
		return sdk.Errorf(sdk.InvalidArgument, "lane is %d, allowed are 0 to %d", lane, maxLanes-1)
	}
	return nil
}

func (r BootstrapReply) checkFor(q BootstrapRequest) error {
	if r.Newest != 0 && r.Newest < q.Generation {
		return sdk.Errorf(sdk.InvalidArgument, "newest is %d, older than the offer's generation %d", r.Newest, q.Generation)
	}
	if r.Newest != 0 {
		if err := checkGeneration("newest", r.Newest); err != nil {
			return err
		}
	}
	return checkBytes("answer", r.Answer, maxOffer)
}

func (r ProbeRequest) check() error { return checkIncarnation("from", r.From) }

func (r ProbeReply) checkFor(ProbeRequest) error { return checkNode("node", r.Node) }

func (r ChangeRequest) check() error {
	return first(checkIncarnation("from", r.From), checkTransports("transports", r.Transports))
}

func (r GoodbyeRequest) check() error {
	return first(checkIncarnation("from", r.From), checkBytes("last_ack", r.LastAck, maxOffer))
}

func (r FenceRequest) check() error {
	return first(
		checkIncarnation("from", r.From),
		checkIncarnation("to", r.To),
		checkTransportName("transport", r.Transport),
		checkText("path", r.Path, maxPath),
		checkLane(r.Lane),
		checkGeneration("generation", r.Generation),
	)
}

func (r DescribeRequest) check() error {
	return first(checkIncarnation("from", r.From), checkIncarnation("to", r.To))
}

func (r DescribeReply) checkFor(q DescribeRequest) error {
	if err := checkNumber("version", r.Version); err != nil {
		return err
	}
	if len(r.Descriptor) == 0 && r.Version != q.Known {
		return missing("descriptor")
	}
	return checkBytes("descriptor", r.Descriptor, MaxDescriptor)
}

func (r InvalidateRequest) check() error {
	return first(
		checkIncarnation("from", r.From),
		checkNumber("version", r.Version),
		checkCapabilities("withdrawn", r.Withdrawn),
	)
}

// checkFor refuses capabilities that were not asked about.
func (r InvalidateReply) checkFor(q InvalidateRequest) error {
	for _, c := range r.Leased {
		if !slices.Contains(q.Withdrawn, c) {
			return sdk.Errorf(sdk.InvalidArgument, "leased names %s, which was not withdrawn", c)
		}
	}
	return checkCapabilities("leased", r.Leased)
}

func checkCapabilities(field string, cs []sdk.Capability) error {
	if len(cs) > maxWithdrawn {
		return sdk.Errorf(sdk.TooLarge, "%s has %d entries, the limit is %d", field, len(cs), maxWithdrawn)
	}
	if slices.ContainsFunc(cs, sdk.Capability.IsZero) {
		return sdk.Errorf(sdk.InvalidArgument, "%s has an empty capability", field)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// bounded cuts s to limit bytes of valid UTF-8 without control characters, so
// that a peer's text is safe in a log line.
func bounded(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s[:min(len(s), 4*limit)], "?"))
	if len(s) <= limit {
		return s
	}
	s = s[:limit-3]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s + "..."
}
