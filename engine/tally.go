package engine

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// tally counts what has labels. What happens per notification goes through
// pointers that paths keep: no lookup, no allocation.
type tally struct {
	failed     [numFailures][numReasons]atomic.Uint64
	handedOver atomic.Uint64 // ended so
	tooLarge   atomic.Uint64 // refused so
	latency    latencies

	dropped       [len(dropNames)]atomic.Uint64
	helloSent     [len(helloNames)]atomic.Uint64
	helloReceived [len(sessionNames)]atomic.Uint64
	sessionsEnded [len(sessionEndNames)]atomic.Uint64
	probes        [len(probeNames)]atomic.Uint64
	marksEnded    [len(markEndNames)]atomic.Uint64
	excused       [len(excuseNames)]atomic.Uint64
	voided        [len(voidNames)]atomic.Uint64

	local transportCounters // of the engine's notifications and transfers to itself

	mu struct {
		sync.Mutex
		transports map[string]*transportCounters
		fallbacks  map[way]uint64
	}
}

// way is a change of transport between two copies.
type way struct{ from, to string }

// transportCounters count what one transport, by its name on the wire, did.
type transportCounters struct {
	name string

	sent, resent, received            atomic.Uint64
	notPosted, handedOver, timeouts   atomic.Uint64
	connects, accepts, connectFailure atomic.Uint64
	acceptFailure, unknown, pauses    atomic.Uint64
	moved                             atomic.Uint64 // bytes of transfers
	errors                            [len(errorNames)]atomic.Uint64
}

// Closed sets of labels. Each begins with what its first constant counts.
const (
	dropFull = iota // the queue had no room: its sender keeps it
	dropPart        // nor the part for its name
	dropLost        // the same at protocols 0 and 1: nobody sends it again
	dropLate        // at protocol 1: too late to tell it from a copy
)

const (
	helloAnswered = iota
	helloFailed
	helloSilent
)

const (
	sessionOpened = iota
	sessionReplaced
	sessionKept
	sessionRefused
)

const (
	endReplaced = iota // by the sender's next one
	endSilent          // its sender was silent for too long
	endOver            // the peer's life is, or this engine's
)

const (
	markAnswered = iota
	markForgotten
)

const (
	voidAckTimeouts = iota
	voidCall
	voidPathError
)

var (
	dropNames       = [...]string{"full", "part_full", "lost", "too_late"}
	helloNames      = [...]string{"answered", "failed", "silent"}
	sessionNames    = [...]string{"opened", "replaced", "kept", "refused"}
	sessionEndNames = [...]string{"replaced", "silent", "over"}
	markEndNames    = [...]string{"answered", "forgotten"}
	voidNames       = [...]string{"ack_timeouts", "call", "path_error"}

	// By health.Outcome.
	probeNames = [...]string{"no_verdict", "answered", "silent", "gone"}
	// By health.Kind, from EndpointEnded on: what counts against a path.
	errorNames = [...]string{"endpoint_ended", "refused", "connect_failed", "not_posted", "ack_timeout"}
	// What does not, and why.
	excuseNames = [...]string{"unproven", "plugin_exited", "control_silent", "no_room", "own_doing", "other"}
)

// excuse is the place in excuseNames of a failure that is not its path's.
func excuse(k health.Kind) int {
	switch k {
	case health.AckTimeout:
		return 0
	case health.PluginExited:
		return 1
	case health.ControlSilent:
		return 2
	case health.NoRoom:
		return 3
	case health.OwnDoing:
		return 4
	}
	return len(excuseNames) - 1
}

const (
	numFailures = 2 // NotSent, DeliveryUnknown
	numReasons  = int(sdk.OutcomeUnknown) + 1

	// maxCountedTransports bounds the names that are counted apart: plugins
	// choose them, and may choose another one with every start.
	maxCountedTransports = 64
	// otherName is what the others are counted under.
	otherName = "other"
)

// of returns the counters of a transport.
func (t *tally) of(name string) *transportCounters {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.transports == nil {
		t.mu.transports = map[string]*transportCounters{}
	}
	c := t.mu.transports[name]
	if c == nil && len(t.mu.transports) >= maxCountedTransports {
		name = otherName
		c = t.mu.transports[name]
	}
	if c == nil {
		c = &transportCounters{name: name}
		t.mu.transports[name] = c
	}
	return c
}

// countersLocked returns the path's transport's counters.
func (p *path) countersLocked(e *Engine) *transportCounters {
	if p.counters == nil {
		p.counters = e.stats.of(p.transport)
	}
	return p.counters
}

// fellBack counts a copy that went another way than the one before.
func (t *tally) fellBack(from, to *transportCounters) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.fallbacks == nil {
		t.mu.fallbacks = map[way]uint64{}
	}
	t.mu.fallbacks[way{from.name, to.name}]++
}

// byTransport returns the counters of every transport, by name.
func (t *tally) byTransport() []*transportCounters {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]*transportCounters, 0, len(t.mu.transports))
	for _, c := range t.mu.transports {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *transportCounters) int { return strings.Compare(a.name, b.name) })
	return list
}

// moved is the bytes of all transfers that have arrived.
func (t *tally) moved() uint64 {
	n := t.local.moved.Load()
	for _, c := range t.byTransport() {
		n += c.moved.Load()
	}
	return n
}

// fallbackCount is how often copies changed from one transport to another.
type fallbackCount struct {
	way
	n uint64
}

func (t *tally) fallbacks() []fallbackCount {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]fallbackCount, 0, len(t.mu.fallbacks))
	for w, n := range t.mu.fallbacks {
		list = append(list, fallbackCount{w, n})
	}
	return list
}

// ended counts an end other than an acknowledgement, before anybody sees it. A
// nil tally counts nothing.
func (t *tally) ended(end End, code Code, cause error) {
	switch {
	case t == nil:
	case end == HandedOver:
		t.handedOver.Add(1)
	case end == Failed:
		reason := sdk.CodeOf(cause)
		if !reason.Valid() {
			reason = 0
		}
		t.failed[failureIndex(code)][reason].Add(1)
	}
}

func failureIndex(code Code) int {
	if code == NotSent {
		return 0
	}
	return 1
}

// failures is how many failed in all.
func (t *tally) failures() (n uint64) {
	for i := range t.failed {
		for j := range t.failed[i] {
			n += t.failed[i][j].Load()
		}
	}
	return n
}

// latencyBounds are the histogram's upper bounds. Acks take microseconds
// within a machine and up to the longest deadline where much is resent.
var latencyBounds = [...]time.Duration{
	50 * time.Microsecond, 100 * time.Microsecond, 200 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond,
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond,
	time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, 60 * time.Second, 600 * time.Second,
}

// latencies is a histogram of the time from Notify to the acknowledgement.
type latencies struct {
	counts [len(latencyBounds) + 1]atomic.Uint64 // the last is above all bounds
	sum    atomic.Int64                          // nanoseconds
}

// observe counts one, but for the sum.
func (l *latencies) observe(d time.Duration) {
	i := 0
	for i < len(latencyBounds) && d > latencyBounds[i] {
		i++
	}
	l.counts[i].Add(1)
}

// age is how long the delivery has been under way.
func (d *Delivery) age(e *Engine, now time.Time) time.Duration { return now.Sub(e.started) - d.born }
