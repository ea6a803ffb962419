package engine

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"unsafe"

	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/engine/internal/seam"
	"github.com/hawser-transport/hawser/sdk"
)

// Queue receives the notifications whose name begins with a prefix, with a
// bound of its own. A slow reader of one queue holds back nobody else's until
// receive.frames or receive.bytes, which bound all queues together, are used
// up.
type Queue struct {
	prefix string
	bounds QueueBounds
	part   *inbox.Part[Received]
}

// QueueBounds bound one queue. Zero means as many as all queues together.
type QueueBounds struct{ Frames, Bytes int }

// NewQueue makes a queue for the names that begin with the prefix; of several
// that fit, the longest counts. It is given to [Open], with [WithQueue], so that
// it is there before the first frame.
func NewQueue(prefix string, bounds QueueBounds) *Queue {
	return &Queue{prefix: prefix, bounds: bounds}
}

// WithQueue adds a queue, of which an engine may have 256.
func WithQueue(q *Queue) Option { return func(o *seam.Options) { o.Queues = append(o.Queues, q) } }

// maxQueues bounds what every name is compared with.
const maxQueues = 256

// Prefix is what the names begin with.
func (q *Queue) Prefix() string { return q.prefix }

// Receive is [Engine.Receive] for this queue.
func (q *Queue) Receive(ctx context.Context) (*Received, error) {
	if q.part == nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "receive: the queue for %q was not given to Open", q.prefix)
	}
	r, err := q.part.Get(orBackground(ctx))
	if err != nil {
		return nil, err
	}
	return &r, nil
}

// Len is how many notifications wait.
func (q *Queue) Len() int {
	if q.part == nil {
		return 0
	}
	return q.part.Len()
}

// divide gives each queue its part.
func (e *Engine) divide(given []any) error {
	queues := make([]*Queue, len(given))
	for i, q := range given {
		queues[i] = q.(*Queue) // WithQueue puts in nothing else
	}
	if len(queues) > maxQueues {
		return sdk.Errorf(sdk.InvalidArgument, "open: %d queues, the limit is %d", len(queues), maxQueues)
	}
	for i, q := range queues {
		if q.part != nil {
			return sdk.Errorf(sdk.InvalidArgument, "open: the queue for %q is another engine's, or given twice", q.prefix)
		}
		if q.bounds.Frames < 0 || q.bounds.Bytes < 0 {
			return sdk.Errorf(sdk.InvalidArgument, "open: the queue for %q has negative bounds", q.prefix)
		}
		if slices.ContainsFunc(queues[:i], func(o *Queue) bool { return o.prefix == q.prefix }) {
			return sdk.Errorf(sdk.InvalidArgument, "open: two queues for %q", q.prefix)
		}
		q.part = e.queue.NewPart(cmp.Or(q.bounds.Frames, e.cfg.Receive.Frames), cmp.Or(q.bounds.Bytes, e.cfg.Receive.Bytes))
	}
	e.queues = slices.SortedFunc(slices.Values(queues), func(a, b *Queue) int { return len(b.prefix) - len(a.prefix) })
	return nil
}

// partFor finds the queue for a name.
func (e *Engine) partFor(name []byte) *inbox.Part[Received] {
	if len(e.queues) > 0 {
		s := unsafe.String(unsafe.SliceData(name), len(name)) // only looked at
		for _, q := range e.queues {
			if strings.HasPrefix(s, q.prefix) {
				return q.part
			}
		}
	}
	return e.queue.Rest()
}
