package engine

import (
	"context"
	"errors"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// A machine that lacks what a transport needs is no trouble: the next one
// carries, it is said once and not as an error, nothing is counted as a crash,
// and the engine is ready. If somebody brings it, it is found.
func TestUnsupportedTransport(t *testing.T) {
	for _, optional := range []bool{true, false} {
		run(t, func(w *world) {
			log := &lines{}
			w.logs = map[string]*lines{"a:1": log}
			var tries atomic.Int32
			var brought atomic.Bool
			w.configs["a:1"] = Config{
				Plugins: PluginsConfig{QuarantineRetrySecs: 300},
				Transports: []TransportConfig{
					{Name: "fast", optional: optional, InProcess: func() sdk.Transport {
						tries.Add(1)
						if brought.Load() {
							return w.fast.New("a:1")
						}
						return noDevice{w.fast.New("a:1")}
					}},
					{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }},
				},
			}
			began := time.Now()
			a := w.open("a:1")
			b := w.open("b:1")
			if took := time.Since(began); took > 0 {
				t.Errorf("Open waited for %v", took)
			}
			events := a.Events(context.Background())
			defer events.Close()
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName {
				t.Errorf("%v over %s", err, d.Report().Transport)
			}
			time.Sleep(11 * time.Minute) // two more tries
			s := a.Transports()[0]
			if tries.Load() != 3 || s.State != "unsupported" || s.Quarantines != 0 || !errors.Is(s.LastError, sdk.Unsupported) {
				t.Errorf("%d tries, %+v", tries.Load(), s)
			}
			level := map[bool]string{true: "INFO", false: "WARN"}[optional]
			const said = `"transport not supported here" transport=fast`
			if log.count("level="+level+" msg="+said) != 1 || log.count(said) != 3 || log.has("level=ERROR") || optional && log.has("level=WARN") {
				t.Errorf("optional %v, the log: %s", optional, log.b.String())
			}
			ready := httptest.NewRecorder()
			Handler(a).ServeHTTP(ready, httptest.NewRequest("GET", "/readyz", nil))
			if ready.Code != 200 || !strings.Contains(ready.Body.String(), `"unsupported"`) {
				t.Errorf("/readyz: %d %s", ready.Code, ready.Body)
			}
			brought.Store(true)
			time.Sleep(6 * time.Minute)
			if s := a.Transports()[0]; s.State != "up" {
				t.Errorf("it is there by now, and the state is %s", s.State)
			}
			for len(events.C()) > 0 {
				if ev := <-events.C(); ev.Kind == TransportQuarantined {
					t.Errorf("told as a fault: %+v", ev)
				}
			}
			w.expect(b, "x")
			w.shut(a, b)
		})
	}
}

// A transport that nobody has listed costs nothing where it is not installed:
// nothing is missing for anybody who looks, and Reload goes on.
func TestDefaultTransportNotInstalled(t *testing.T) {
	t.Setenv(PluginPathVariable, "")
	dir := t.TempDir()
	for _, name := range []string{"hawser-tcp", "hawser-rpcfallback"} {
		script(t, dir, name, "exit 0")
	}
	cfg := Config{Plugins: PluginsConfig{Dir: dir}}
	states := func() map[string]PluginState { return pluginStates(t, cfg) }
	if got, want := states(), (map[string]PluginState{"tcp": PluginUnlisted, "rpcfallback": PluginUnlisted}); !reflect.DeepEqual(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	listed := cfg
	listed.Transports = []TransportConfig{{Name: "rdma"}, {Name: "tcp"}}
	if got := pluginStates(t, listed); got["rdma"] != PluginMissing {
		t.Errorf("of one that is listed: %v", got)
	}
	// There and of no use is not the same as not installed.
	if err := os.WriteFile(dir+"/hawser-rdma", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := states(); got["rdma"] != PluginMissing {
		t.Errorf("not executable: %v", got)
	}
	if _, list, err := Examine(t.Context(), cfg); err != nil || !list[0].Troubled() || list[0].Findings[0].State != FindingProblem ||
		!strings.Contains(list[0].Findings[0].Found, "not executable: chmod +x it") {
		t.Errorf("not executable: %+v, %v", list, err)
	}
	if err := os.Remove(dir + "/hawser-rdma"); err != nil {
		t.Fatal(err)
	}
	script(t, dir, "hawser-rdma", "exit 0")
	if got := states(); got["rdma"] != PluginUnlisted {
		t.Errorf("installed: %v", got)
	}
	if _, _, _, err := UpdatePluginLock(cfg); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir + "/hawser-rdma"); err != nil {
		t.Fatal(err)
	}
	if got := states(); got["rdma"] != PluginMissing {
		t.Errorf("approved, and gone: %v", got)
	}
}

// The engine that runs without it, and one that runs with it.
func TestReloadWithoutADefaultTransport(t *testing.T) {
	t.Setenv(PluginPathVariable, "")
	run(t, func(w *world) {
		log := &lines{}
		w.logs = map[string]*lines{"a:1": log}
		one := TransportConfig{Name: "fast", InProcess: func() sdk.Transport { return w.fast.New("a:1") }}
		gone := TransportConfig{Name: "gone", optional: true}
		w.configs["a:1"] = Config{Transports: []TransportConfig{gone, one}, Notification: NotificationConfig{RPCFallback: new(false)}}
		a := w.open("a:1")
		if list := a.Transports(); len(list) != 1 || list[0].Name != "fast" || log.has("level=ERROR") || !log.has(`level=INFO msg="transport not installed`) {
			t.Errorf("%+v; %s", list, log.b.String())
		}
		cfg := w.configs["a:1"]
		cfg.Node.Name = "a:1"
		if err := a.Reload(context.Background(), cfg); err != nil {
			t.Errorf("reload: %v", err)
		}
		// One that runs is not dropped because its binary is away.
		cfg.Transports = []TransportConfig{{Name: "fast", optional: true}}
		if err := a.Reload(context.Background(), cfg); !errors.Is(err, sdk.InvalidArgument) || len(a.Transports()) != 1 {
			t.Errorf("reload: %v", err)
		}
		// One that was added and is not for this machine is no failure, unless it was listed.
		for _, optional := range []bool{true, false} {
			absent := TransportConfig{Name: "absent", optional: optional, InProcess: func() sdk.Transport { return noDevice{w.slow.New("a:1")} }}
			cfg.Transports = []TransportConfig{one}
			if err := a.Reload(context.Background(), cfg); err != nil {
				t.Fatal(err)
			}
			cfg.Transports = []TransportConfig{absent, one}
			if err := a.Reload(context.Background(), cfg); (err == nil) != optional {
				t.Errorf("optional %v: %v", optional, err)
			}
		}
		w.shut(a)
	})
}
