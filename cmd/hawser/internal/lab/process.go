package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Options are a child's.
type Options struct {
	// Host is where it runs; nil is here.
	Host Host
	// Args are the program's arguments: those of a command that calls Serve.
	Args []string
	// Env is added to the environment.
	Env []string
	// Stderr takes what the child writes there; nil keeps the end of it for
	// [Process.Words].
	Stderr io.Writer
	// OnEvent is called for each event, one at a time.
	OnEvent func(event string, data json.RawMessage)
}

// Process is the parent's side of a child.
type Process struct {
	child *spawned
	words *tail
	gone  chan struct{} // reaped, and all that it said was read

	mu      sync.Mutex
	next    uint64
	pending map[uint64]chan message
	ended   error // set when no answer can come any more
}

// Start starts the running program again, as a child. On another host it has
// that one's environment, and Env.
func Start(o Options) (*Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	host := o.Host
	if host == nil {
		host = Here{}
	}
	p := &Process{words: &tail{}, gone: make(chan struct{}), pending: map[uint64]chan message{}}
	stderr := io.Writer(p.words)
	if o.Stderr != nil {
		stderr = io.MultiWriter(p.words, o.Stderr)
	}
	if p.child, err = host.start(o, exe, stderr); err != nil {
		return nil, err
	}
	go func() {
		p.read(p.child.out, o.OnEvent)
		<-p.child.reaped
		_ = p.child.in.Close()
		close(p.gone)
	}()
	return p, nil
}

// read takes in the child's lines until there are no more.
func (p *Process) read(out io.ReadCloser, onEvent func(string, json.RawMessage)) {
	defer out.Close()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			p.words.note("not a message: " + lines.Text())
			continue
		}
		if m.Event != "" {
			if onEvent != nil {
				onEvent(m.Event, m.Data)
			}
			continue
		}
		p.mu.Lock()
		c := p.pending[m.ID]
		delete(p.pending, m.ID)
		p.mu.Unlock()
		if c != nil {
			c <- m
		}
	}
	_, _ = io.Copy(io.Discard, out)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = errGone
	for id, c := range p.pending {
		delete(p.pending, id)
		close(c)
	}
}

var errGone = errors.New("the process has ended")

// Call makes a request and stores its result, unless result is nil.
func (p *Process) Call(ctx context.Context, do string, args, result any) error {
	raw, err := json.Marshal(args)
	if err != nil {
		return err
	}
	c := make(chan message, 1)
	p.mu.Lock()
	if p.ended != nil {
		p.mu.Unlock()
		return p.fault(do, errGone)
	}
	p.next++
	id := p.next
	p.pending[id] = c
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.pending, id)
		p.mu.Unlock()
	}()
	line, err := json.Marshal(message{ID: id, Do: do, Args: raw})
	if err != nil {
		return err
	}
	if _, err := p.child.in.Write(append(line, '\n')); err != nil {
		return p.fault(do, errGone)
	}
	select {
	case m, ok := <-c:
		switch {
		case !ok:
			return p.fault(do, errGone)
		case m.Error != "":
			return errors.New(m.Error)
		case result != nil:
			return json.Unmarshal(m.OK, result)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: no answer from process %d: %w", do, p.PID(), context.Cause(ctx))
	}
}

// fault adds the child's last words.
func (p *Process) fault(do string, err error) error {
	if w := p.Words(); w != "" {
		return fmt.Errorf("%s: process %d: %w; it said: %s", do, p.PID(), err, w)
	}
	return fmt.Errorf("%s: process %d: %w", do, p.PID(), err)
}

// PID is the child's process id.
func (p *Process) PID() int { return p.child.pid }

// Words is the end of what the child wrote to stderr.
func (p *Process) Words() string { return p.words.String() }

// Gone is closed when the child has been reaped and everything that it said
// was taken in.
func (p *Process) Gone() <-chan struct{} { return p.gone }

// Kill kills the child at once and waits until it is gone.
func (p *Process) Kill() {
	p.child.kill()
	<-p.gone
}

// Close lets the child end, by ending its stdin, and kills it when ctx ends
// first. It is idempotent.
func (p *Process) Close(ctx context.Context) error {
	_ = p.child.in.Close()
	select {
	case <-p.gone:
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("process %d did not end: it was killed: %w", p.PID(), context.Cause(ctx))
	}
}
