package demo

import (
	"context"
	"sync"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// journal collects what a node has to tell. Whatever gathers while one message
// is written goes into the next.
type journal struct {
	mu      sync.Mutex
	pending entries
	news    chan struct{} // has room for one
}

func newJournal() *journal { return &journal{news: make(chan struct{}, 1)} }

func (j *journal) add(f func(*entries)) {
	j.mu.Lock()
	f(&j.pending)
	j.mu.Unlock()
	select {
	case j.news <- struct{}{}:
	default:
	}
}

// run tells until ctx ends, and then what is left.
func (j *journal) run(ctx context.Context, out *lab.Emitter) {
	for {
		select {
		case <-j.news:
			out.Emit(entriesEvent, j.take())
		case <-ctx.Done():
			out.Emit(entriesEvent, j.take())
			return
		}
	}
}

func (j *journal) take() entries {
	j.mu.Lock()
	defer j.mu.Unlock()
	e := j.pending
	j.pending = entries{}
	return e
}

const entriesEvent = "entries"
