//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
)

// host serves as a virtual host's agent does, here.
func host(t *testing.T) agent.Host {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = serve(l, "secret") }()
	t.Cleanup(func() { l.Close(); <-done })
	return agent.Host{Agent: l.Addr().String(), Secret: "secret"}
}

// output can be waited for.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	news chan struct{}
}

func newOutput() *output { return &output{news: make(chan struct{}, 1)} }

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.Write(p)
	select {
	case o.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (o *output) await(t *testing.T, want string) {
	t.Helper()
	for {
		o.mu.Lock()
		got := o.b.String()
		o.mu.Unlock()
		if strings.Contains(got, want) {
			return
		}
		select {
		case <-o.news:
		case <-t.Context().Done():
			t.Fatalf("no %q in %q", want, got)
		case <-time.After(30 * time.Second):
			t.Fatalf("no %q in %q", want, got)
		}
	}
}

func TestChildHasItsThreeStreams(t *testing.T) {
	h := host(t)
	out, errs := newOutput(), newOutput()
	p, err := h.Start(t.Context(), agent.Command{
		Args: []string{"/bin/sh", "-c", `echo "$GREETING" >&2; cat; exit 3`}, Env: []string{"GREETING=hello"},
	}, out, errs)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	large := bytes.Repeat([]byte("0123456789abcdef"), 20<<10) // several frames
	if n, err := p.Write(large); n != len(large) || err != nil {
		t.Fatalf("%d, %v", n, err)
	}
	if err := p.CloseStdin(); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("it ended with %v", err)
	}
	if !bytes.Equal(out.b.Bytes(), large) || errs.b.String() != "hello\n" {
		t.Errorf("%d bytes came back, and %q", out.b.Len(), errs.b.String())
	}
}

// The child and what it has started end with the connection.
func TestConnectionIsTheChildsLife(t *testing.T) {
	h := host(t)
	out := newOutput()
	p, err := h.Start(t.Context(), agent.Command{Args: []string{"/bin/sh", "-c", `sleep 1000 & echo "<$!>"; wait`}}, out, out)
	if err != nil {
		t.Fatal(err)
	}
	out.await(t, ">")
	grandchild, err := strconv.Atoi(strings.Trim(out.b.String(), "<>\n"))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := h.Ask(t.Context(), agent.Request{Stat: &agent.Target{PID: grandchild, Parent: p.PID}}); err != nil || a.Gone {
		t.Fatalf("%+v, %v", a, err)
	}
	p.Kill()
	for _, pid := range []int{p.PID, grandchild} {
		awaitGone(t, h, pid)
	}
}

func awaitGone(t *testing.T, h agent.Host, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		a, err := h.Ask(ctx, agent.Request{Stat: &agent.Target{PID: pid}})
		if err != nil {
			t.Fatalf("process %d: %v", pid, err)
		}
		if a.Gone {
			return
		}
	}
}

func TestSignalReachesWhoIsMeant(t *testing.T) {
	h := host(t)
	p, err := h.Start(t.Context(), agent.Command{Args: []string{"/bin/cat"}}, newOutput(), newOutput())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	a, err := h.Ask(t.Context(), agent.Request{Stat: &agent.Target{PID: p.PID, Parent: os.Getpid()}})
	if err != nil || a.Gone || a.Started == 0 || a.Clock == 0 {
		t.Fatalf("%+v, %v", a, err)
	}
	for name, wrong := range map[string]agent.Target{
		"another parent": {PID: p.PID, Parent: 1}, "started later": {PID: p.PID, Started: a.Started + 1},
	} {
		wrong.Signal = int(syscall.SIGKILL)
		if _, err := h.Ask(t.Context(), agent.Request{Signal: &wrong}); err == nil {
			t.Errorf("%s: the signal was sent", name)
		}
	}
	right := agent.Target{PID: p.PID, Started: a.Started, Signal: int(syscall.SIGKILL)}
	if _, err := h.Ask(t.Context(), agent.Request{Signal: &right}); err != nil {
		t.Fatal(err)
	}
	if err := p.Wait(); err == nil {
		t.Error("it was killed and ended well")
	}
	if a, err := h.Ask(t.Context(), agent.Request{Stat: &right}); err != nil || !a.Gone {
		t.Errorf("afterwards: %+v, %v", a, err)
	}
}

func TestRunIsBounded(t *testing.T) {
	h := host(t)
	if out, err := h.Run(t.Context(), "/bin/echo", "here"); err != nil || out != "here" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := h.Run(t.Context(), "/bin/sh", "-c", "echo no; exit 7"); err == nil || out != "no" || !strings.Contains(err.Error(), "status 7: no") {
		t.Errorf("%q, %v", out, err)
	}
	a, err := h.Ask(t.Context(), agent.Request{Run: &agent.Command{Args: []string{"/usr/bin/head", "-c", fmt.Sprint(2 * agent.MaxOutput), "/dev/zero"}}})
	if err != nil || len(a.Output) != agent.MaxOutput {
		t.Errorf("%d bytes, %v", len(a.Output), err)
	}
	began := time.Now()
	if _, err := h.Ask(t.Context(), agent.Request{Run: &agent.Command{Args: []string{"/bin/sleep", "1000"}, Seconds: 1}}); err == nil || time.Since(began) > 20*time.Second {
		t.Errorf("sleep ended with %v", err)
	}
	if _, err := h.Run(t.Context(), "/no/such/program"); err == nil {
		t.Error("what is not there ran")
	}
}

func TestNobodyElseIsAnswered(t *testing.T) {
	h := host(t)
	h.Secret = "guess"
	if a, err := h.Ask(t.Context(), agent.Request{Read: "/proc/self/stat"}); err == nil || len(a.Output) > 0 {
		t.Errorf("%q, %v", a.Output, err)
	}
	conn, err := net.Dial("tcp", h.Agent)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET / HTTP/1.1\n\n")
	b := make([]byte, 4096)
	n, _ := conn.Read(b)
	if !strings.Contains(string(b[:n]), `"Error"`) {
		t.Errorf("got %q", b[:n])
	}
}

func TestFilesAndClock(t *testing.T) {
	h := host(t)
	if b, err := h.Read(t.Context(), "/proc/self/stat"); err != nil || !bytes.HasPrefix(b, []byte(strconv.Itoa(os.Getpid()))) {
		t.Errorf("%q, %v", b, err)
	}
	if names, err := h.List(t.Context(), "/proc/self/fd"); err != nil || len(names) < 3 {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := h.Read(t.Context(), "/no/such/file"); err == nil {
		t.Error("what is not there was read")
	}
	began := time.Now()
	a, err := h.Ask(t.Context(), agent.Request{Stat: &agent.Target{PID: 1}})
	if err != nil {
		t.Fatal(err)
	}
	base := time.Duration(a.Clock) // at began, by the host's clock
	off, err := h.Offset(t.Context(), func() time.Duration { return time.Since(began) + time.Hour })
	if d := off + base - time.Hour; err != nil || d < -time.Second || d > time.Second {
		t.Errorf("off by %v, %v", d, err)
	}
}
