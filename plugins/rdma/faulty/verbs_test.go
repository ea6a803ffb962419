package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

func TestMain(m *testing.M) {
	// The listener lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hawser-transport/hawser/plugins/rdma/faulty.listen.func1"))
}

// events is a device's channel.
type events struct {
	verbs.Channel
	c chan error
}

func (e events) Wait() error  { return <-e.c }
func (e events) Interrupt()   { e.c <- verbs.ErrClosed }
func (e events) Close() error { return nil }

// A poller that is held hears of nothing until it is released, and nobody is
// told that it is held before it is.
func TestAHeldPollerSleeps(t *testing.T) {
	b := newBook()
	dev := events{c: make(chan error, 2)}
	c := &channel{Channel: dev, book: b, over: make(chan struct{}), heard: make(chan error, 1)}
	polls := make(chan error)
	go func() {
		for {
			err := c.Wait()
			polls <- err
			if err != nil {
				return
			}
		}
	}()
	dev.c <- nil
	if err := <-polls; err != nil {
		t.Fatal(err)
	}
	held := make(chan error)
	go func() { held <- b.hold() }()
	// It may have slept already; otherwise it polls once more, and is not held
	// before it has.
	var err error
	select {
	case err = <-held:
	case <-polls:
		err = <-held
	}
	if err != nil {
		t.Fatal(err)
	}
	dev.c <- nil
	select {
	case <-polls:
		t.Error("a held poller was woken")
	default:
	}
	b.release()
	if err := <-polls; err != nil {
		t.Error(err)
	}
	c.Interrupt()
	for err = nil; err == nil; {
		err = <-polls
	}
	if err := c.Close(); err != nil || len(b.asleep) > 0 {
		t.Errorf("%v; %d pollers are left", err, len(b.asleep))
	}
}

// pair is a queue pair of a device.
type pair struct {
	verbs.QP
	num   uint32
	state verbs.QPState
}

func (p *pair) Post(wrs []verbs.SendWR) (int, error) { return len(wrs), nil }
func (p *pair) Num() uint32                          { return p.num }
func (p *pair) State() (verbs.QPState, error)        { return p.state, nil }
func (p *pair) ToError() error                       { p.state = verbs.Err; return nil }
func (p *pair) ToReset() error                       { p.state = verbs.Reset; return nil }

// Whoever asks at the socket moves what is connected, and nothing else.
func TestSocketMovesConnectedQueuePairs(t *testing.T) {
	dir, err := os.MkdirTemp("", "rf")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	b := newBook()
	up, half := &pair{num: 17, state: verbs.RTS}, &pair{num: 18, state: verbs.RTR}
	busy := &queuePair{up, "sim0", b}
	for _, q := range []*queuePair{busy, {half, "sim0", b}} {
		b.qps[q] = struct{}{}
	}
	if err := listen(socket, b); err != nil {
		t.Fatal(err)
	}
	ask := func(word string) string {
		out, err := client([]string{"ctl", socket, word})
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	}
	if got := ask("connected"); got != "1" {
		t.Errorf("connected: %q", got)
	}
	moved := make(chan string)
	go func() { moved <- ask("error") }()
	for asked := false; !asked; runtime.Gosched() { // it waits for a message
		b.mu.Lock()
		asked = b.next != nil
		b.mu.Unlock()
	}
	_, _ = busy.Post([]verbs.SendWR{{Op: verbs.SendImm}})
	if up.state != verbs.RTS {
		t.Errorf("a control word moved it to %v", up.state)
	}
	_, _ = busy.Post([]verbs.SendWR{{Op: verbs.Send}})
	if got := <-moved; got != "sim0 17" || up.state != verbs.Err || half.state != verbs.RTR {
		t.Errorf("error: %q, %v, %v", got, up.state, half.state)
	}
	if got := ask("reset"); !strings.Contains(got, "no queue pair is connected") {
		t.Errorf("reset: %q", got)
	}
	if got := ask("nonsense"); !strings.Contains(got, "unknown") {
		t.Errorf("nonsense: %q", got)
	}
}

func TestToolRefusesNonsense(t *testing.T) {
	for _, args := range [][]string{{"ctl"}, {"sim", "x"}, {"sim", t.TempDir(), "port-down", "h", "rail"}, {"sim", t.TempDir(), "host", "h", "no address"}} {
		if _, err := client(args); err == nil {
			t.Errorf("%q passes", args)
		}
	}
}
