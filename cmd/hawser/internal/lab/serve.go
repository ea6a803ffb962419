package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Handler answers one kind of request. Its context ends with the child.
type Handler func(ctx context.Context, args json.RawMessage) (any, error)

// Emitter sends events to the parent.
type Emitter struct {
	mu  sync.Mutex
	out *bufio.Writer
}

// Emit sends an event. A parent that is gone is noticed by [Serve].
func (e *Emitter) Emit(event string, data any) { e.write(message{Event: event}, data) }

func (e *Emitter) write(m message, data any) {
	raw, err := json.Marshal(data)
	switch {
	case err != nil && m.ID != 0:
		m.Error = "the answer cannot be written: " + err.Error()
	case m.Event != "":
		m.Data = raw
	case m.Error == "":
		m.OK = raw
	}
	line, err := json.Marshal(m)
	if err != nil {
		return // strings and valid JSON
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, _ = e.out.Write(append(line, '\n'))
	_ = e.out.Flush()
}

// Serve answers requests, each in a goroutine of its own, until in ends or ctx
// does. When it returns no handler is running.
func Serve(ctx context.Context, in io.ReadCloser, out io.Writer, handlers func(*Emitter) map[string]Handler) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = in.Close() })()
	e := &Emitter{out: bufio.NewWriter(out)}
	known := handlers(e)
	var running sync.WaitGroup
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			cancel()
			running.Wait()
			return fmt.Errorf("a line from the parent is not a request: %w", err)
		}
		running.Go(func() { answer(ctx, e, known, m) })
	}
	cancel()
	running.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return lines.Err()
}

func answer(ctx context.Context, e *Emitter, handlers map[string]Handler, m message) {
	h, ok := handlers[m.Do]
	if !ok {
		e.write(message{ID: m.ID, Error: fmt.Sprintf("unknown request %q", m.Do)}, nil)
		return
	}
	result, err := h(ctx, m.Args)
	if err != nil {
		e.write(message{ID: m.ID, Error: err.Error()}, nil)
		return
	}
	e.write(message{ID: m.ID}, result)
}

// With makes a handler of a function with typed arguments.
func With[A any](f func(context.Context, A) (any, error)) Handler {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var args A
		if len(raw) > 0 {
			if err := json.Unmarshal(raw, &args); err != nil {
				return nil, fmt.Errorf("arguments: %w", err)
			}
		}
		return f(ctx, args)
	}
}
