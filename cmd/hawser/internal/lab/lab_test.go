package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childArg makes the test binary a child.
const childArg = "lab-test-child"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == childArg {
		os.Exit(child())
	}
	goleak.VerifyTestMain(m)
}

// child answers until its stdin ends.
func child() int {
	fmt.Fprintln(os.Stderr, "a word from the child")
	err := Serve(context.Background(), os.Stdin, os.Stdout, func(e *Emitter) map[string]Handler {
		return map[string]Handler{
			"double": With(func(_ context.Context, n int) (any, error) {
				e.Emit("doubled", n)
				return 2 * n, nil
			}),
			"fail": With(func(context.Context, struct{}) (any, error) { return nil, errors.New("as asked") }),
			"hang": With(func(ctx context.Context, _ struct{}) (any, error) { <-ctx.Done(); return nil, ctx.Err() }),
			"die":  With(func(context.Context, struct{}) (any, error) { os.Exit(3); return nil, nil }),
			"stay": With(func(context.Context, struct{}) (any, error) { select {} }),
		}
	})
	if err != nil {
		return 1
	}
	return 0
}

func startChild(t *testing.T, onEvent func(string, json.RawMessage)) *Process {
	t.Helper()
	p, err := Start(Options{Args: []string{childArg}, OnEvent: onEvent})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	return p
}

func TestCalls(t *testing.T) {
	events := make(chan string, 10)
	p := startChild(t, func(event string, data json.RawMessage) { events <- event + string(data) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var n int
	if err := p.Call(ctx, "double", 21, &n); err != nil || n != 42 {
		t.Errorf("%d %v", n, err)
	}
	if e := <-events; e != "doubled21" {
		t.Errorf("got %s", e)
	}
	if err := p.Call(ctx, "fail", nil, nil); err == nil || err.Error() != "as asked" {
		t.Errorf("got %v", err)
	}
	if err := p.Call(ctx, "nosuch", nil, nil); err == nil || !strings.Contains(err.Error(), `unknown request "nosuch"`) {
		t.Errorf("got %v", err)
	}
	if err := p.Call(ctx, "double", "text", nil); err == nil || !strings.Contains(err.Error(), "arguments") {
		t.Errorf("got %v", err)
	}
	short, stop := context.WithTimeout(ctx, 20*time.Millisecond)
	defer stop()
	if err := p.Call(short, "hang", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := p.Call(ctx, "double", 1, nil); !errors.Is(err, errGone) {
		t.Errorf("got %v", err)
	}
}

func TestChildDies(t *testing.T) {
	p := startChild(t, nil)
	err := p.Call(t.Context(), "die", nil, nil)
	if !errors.Is(err, errGone) {
		t.Errorf("got %v", err)
	}
	<-p.Gone()
	if w := p.Words(); w != "a word from the child" {
		t.Errorf("got %q", w)
	}
}

func TestChildThatDoesNotEndIsKilled(t *testing.T) {
	p := startChild(t, nil)
	go func() { _ = p.Call(context.Background(), "stay", nil, nil) }()
	if err := p.Call(t.Context(), "double", 1, nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Close(ctx); err == nil || !strings.Contains(err.Error(), "it was killed") {
		t.Errorf("got %v", err)
	}
	<-p.Gone()
}

func TestServeRefusesRubbish(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.WriteString("rubbish\n"); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	err = Serve(t.Context(), r, &out, func(*Emitter) map[string]Handler { return nil })
	if err == nil || !strings.Contains(err.Error(), "not a request") {
		t.Errorf("got %v", err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var x tail
	for i := range 10_000 {
		x.note(fmt.Sprint(i))
	}
	if s := x.String(); len(s) > maxTail || !strings.HasSuffix(s, "9999") {
		t.Errorf("%d bytes", len(s))
	}
}

func TestSetupCheck(t *testing.T) {
	err := Setup{Name: "a", Listen: "127.0.0.1:0", PluginsDir: t.TempDir(), Transports: []string{"nosuch"}}.Check()
	if err == nil || !strings.Contains(err.Error(), "plugin nosuch was not found") {
		t.Errorf("got %v", err)
	}
}
