//go:build linux

package scenarios

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk"
)

// journal keeps a log.
type journal struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.b.String()
}

// Without a word about transports RDMA carries where there is some. Elsewhere
// it is said once, as no error; the engine is ready, tcp carries, and a reload
// changes nothing.
func TestDefaultTransports(t *testing.T) {
	plain := func(name string) engine.Config {
		cfg := config(name)
		cfg.Transports = nil
		return cfg
	}
	log := &journal{}
	sender := open(t, plain("sender"), engine.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	receiver := open(t, plain("receiver"))
	var order []string
	for _, s := range sender.Transports() {
		order = append(order, s.Name)
	}
	if strings.Join(order, " ") != "rdma tcp rpcfallback" { // and not mnnvl
		t.Fatalf("the transports are %v", order)
	}
	over := "rdma"
	rdma, _ := sender.status("rdma")
	if rdma.State != "up" {
		over = "tcp"
		const said = "transport not supported here"
		if rdma.State != "unsupported" || rdma.PID != 0 || !errors.Is(rdma.LastError, engine.Unsupported) || strings.Count(log.String(), said) != 1 || strings.Contains(log.String(), "level=ERROR") {
			t.Errorf("%+v; the log: %s", rdma, log)
		}
	}
	for _, r := range sender.send(t, receiver.address(), "default", 100) {
		if r.Transport != over {
			t.Fatalf("went over %s, want %s", r.Transport, over)
		}
	}
	receiver.inbox.expect(t, map[string]int{"default": 100})
	ready := httptest.NewRecorder()
	engine.Handler(sender.Engine).ServeHTTP(ready, httptest.NewRequest("GET", "/readyz", nil))
	if ready.Code != 200 {
		t.Errorf("/readyz: %d %s", ready.Code, ready.Body)
	}
	// What is for GPUs' memory waits for some.
	_, err := sender.RegisterHandle(engine.ExportedMemory{
		HandleKind: sdk.IPCHandle, Handle: make([]byte, sdk.HandleBytes), Address: 1 << 30, Length: 1, Allocation: 1,
	}, engine.RegionOptions{})
	gpu, there := sender.status("mnnvl")
	if err == nil || !there && !onHardware() || there && gpu.State != "up" && (gpu.State != "unsupported" || gpu.PID != 0) {
		t.Errorf("%v; %+v", err, gpu)
	}
	t.Log(err)
	if err := sender.Reload(t.Context(), plain("sender")); err != nil {
		t.Errorf("reload: %v", err)
	}
	if now, _ := sender.status("rdma"); now.State != rdma.State || now.Restarts != rdma.Restarts {
		t.Errorf("after the reload: %+v", now)
	}
}
