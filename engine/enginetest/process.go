package enginetest

import (
	"sync"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/internal/seam"
)

// Process is what an engine runs in, as far as it can be stopped. While it is,
// nothing of the engine goes on: its timers fire and its calls come back, and
// what they wake stands still until Resume, when all of it is due at once, as
// after SIGSTOP and SIGCONT. Its transports are not stopped, and what others
// see of a stopped process is for the network and the fabric to say. The zero
// value runs.
type Process struct {
	mu      sync.Mutex
	stopped chan struct{} // closed by Resume; nil: it runs
}

// In returns the option with which an engine runs in the process.
func (p *Process) In() engine.Option { return func(o *seam.Options) { o.Hold = p.Awake } }

// Stop stops the process.
func (p *Process) Stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped == nil {
		p.stopped = make(chan struct{})
	}
}

// Resume lets it go on.
func (p *Process) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped != nil {
		close(p.stopped)
		p.stopped = nil
	}
}

// Awake returns once the process runs. Whatever else belongs to the process,
// such as the program that the engine is embedded in, or a transport's calls of
// its handler, calls it where it goes on after it waited.
func (p *Process) Awake() {
	for {
		p.mu.Lock()
		stopped := p.stopped
		p.mu.Unlock()
		if stopped == nil {
			return
		}
		<-stopped
	}
}

// Random replaces the source of the engine's sessions and jitter, so that a run
// can be repeated. It is called by many goroutines.
func Random(next func() uint64) engine.Option {
	return func(o *seam.Options) { o.Random = next }
}
