package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

func TestMain(m *testing.M) {
	// The listener lives as long as the process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/hawser-transport/hawser/plugins/rdma/faulty.listen.func1"))
}

// queue is a device's completion queue.
type queue struct {
	verbs.CQ
	wcs []verbs.WC
}

func (q *queue) Poll(wcs []verbs.WC) (int, error) {
	n := copy(wcs, q.wcs)
	q.wcs = q.wcs[n:]
	return n, nil
}

// ids polls until nothing comes.
func ids(t *testing.T, c verbs.CQ) (got []uint64) {
	t.Helper()
	var wcs [2]verbs.WC
	for {
		n, err := c.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return got
		}
		for _, wc := range wcs[:n] {
			got = append(got, wc.ID)
		}
	}
}

func TestHeldAndKeptCompletionsComeInOrder(t *testing.T) {
	b := newBook()
	q := &queue{wcs: []verbs.WC{{ID: 1, Recv: true}, {ID: 2}, {ID: 3, Recv: true, Status: verbs.Flushed}, {ID: 4, Recv: true, HasImm: true}}}
	c := &completions{CQ: q, book: b}
	b.set(holding)
	if got := ids(t, c); len(got) != 0 || len(q.wcs) != 4 {
		t.Errorf("held: %v came, %d are left with the device", got, len(q.wcs))
	}
	b.set(keeping)
	for range 3 {
		if got := ids(t, c); len(got) != 0 {
			t.Errorf("kept: %v came", got)
		}
	}
	if len(q.wcs) != 0 || b.kept != 1 {
		t.Errorf("%d are left with the device, %d messages are kept, not 1", len(q.wcs), b.kept)
	}
	q.wcs = []verbs.WC{{ID: 5}}
	b.set(passing)
	if got := ids(t, c); len(got) != 5 || got[0] != 1 || got[4] != 5 {
		t.Errorf("released: %v", got)
	}
}

// pair is a queue pair of a device.
type pair struct {
	verbs.QP
	num   uint32
	state verbs.QPState
}

func (p *pair) Num() uint32                   { return p.num }
func (p *pair) State() (verbs.QPState, error) { return p.state, nil }
func (p *pair) ToError() error                { p.state = verbs.Err; return nil }
func (p *pair) ToReset() error                { p.state = verbs.Reset; return nil }

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
	for _, p := range []*pair{up, half} {
		b.qps[&queuePair{p, "sim0", b}] = struct{}{}
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
	if got := ask("error"); got != "sim0 17" || up.state != verbs.Err || half.state != verbs.RTR {
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
