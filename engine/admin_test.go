package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-transport/hawser/engine/admin"
	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// real is engines in real time, for what needs sockets.
type real struct {
	t       *testing.T
	network *control.Network
	fabric  *sdktest.Fabric
}

func newReal(t *testing.T) *real {
	return &real{t, control.NewNetwork(), sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName})}
}

func (r *real) try(address string, cfg AdminConfig, opts ...Option) (*Engine, error) {
	opts = append(opts, withCarrier(r.network.Carrier(address)))
	return Open(context.Background(), Config{
		Node: NodeConfig{Name: "node <" + address + ">"}, Admin: cfg, Plugins: PluginsConfig{QuarantineRetrySecs: 3600, CrashBudget: 1},
		Transports: []TransportConfig{
			{Name: rpcFallbackName, InProcess: func() sdk.Transport { return r.fabric.New(address) }},
		},
	}, opts...)
}

func (r *real) open(address string, cfg AdminConfig, opts ...Option) *Engine {
	r.t.Helper()
	e, err := r.try(address, cfg, opts...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.close(e) })
	return e
}

func (r *real) close(e *Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = e.Close(ctx)
}

// talk has a notification delivered from one engine to the other.
func (r *real) talk(from, to *Engine) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	d, err := from.Notify(ctx, to.Self().Address, Notification{Name: "hello"})
	if err == nil {
		err = d.Wait(ctx)
	}
	if err == nil {
		_, err = to.Receive(ctx)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func ready(t *testing.T, h http.Handler) (admin.Ready, int) {
	t.Helper()
	w := get(t, h, "/readyz")
	var r admin.Ready
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
		t.Fatalf("%v: %s", err, w.Body)
	}
	return r, w.Code
}

func TestHandler(t *testing.T) {
	r := newReal(t)
	a, b := r.open("a:1", AdminConfig{}, WithMetrics(prometheus.NewRegistry())), r.open("b:1", AdminConfig{})
	r.talk(a, b)
	h := Handler(a)
	if w := get(t, h, "/healthz"); w.Code != 200 || w.Body.String() != "ok\n" {
		t.Errorf("health: %d %s", w.Code, w.Body)
	}
	got, code := ready(t, h)
	if code != 200 || !got.Ready || len(got.Transports) != 1 || got.Transports[0].State != "up" ||
		len(got.Peers) != 1 || got.Peers[0].Address != "b:1" || len(got.Peers[0].Usable) != 1 || got.PeersWithoutPath != 0 {
		t.Errorf("ready: %d %+v", code, got)
	}
	if w := get(t, h, "/metrics"); w.Code != 200 || !strings.Contains(w.Body.String(), "\nhawser_notifications_acked_total 1\n") {
		t.Errorf("metrics: %d %s", w.Code, w.Body)
	}
	if w := get(t, Handler(b), "/metrics"); w.Code != 404 {
		t.Errorf("metrics that are off: %d", w.Code)
	}
	w := get(t, h, "/")
	page := w.Body.String()
	for _, want := range []string{"node &lt;a:1&gt;", "b:1", "rpcfallback", ">ready<", "</table>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q:\n%s", want, page)
		}
	}
	if strings.Contains(page, "<a:1>") || strings.Contains(page, "http://") || strings.Contains(page, "ZgotmplZ") {
		t.Errorf("the page:\n%s", page)
	}
	if w := get(t, h, "/other"); w.Code != 404 {
		t.Errorf("another page: %d", w.Code)
	}

	// The peer goes: the engine is ready, and says who cannot be reached.
	r.network.Refuse("b:1", true)
	r.fabric.Kill("a:1") // over its crash budget
	until(t, func() bool { got, code = ready(t, h); return code == 503 })
	if got.Ready || got.Reason != "no transport is up" || got.Transports[0].LastError == "" {
		t.Errorf("without a transport: %+v", got)
	}
	r.close(a)
	if got, code = ready(t, h); code != 503 || got.Reason != "the engine is closing" {
		t.Errorf("closed: %d %+v", code, got)
	}
	if w := get(t, h, "/"); w.Code != 200 || !strings.Contains(w.Body.String(), "not ready: the engine is closing") {
		t.Errorf("closed: %s", w.Body)
	}
}

func until(t *testing.T, f func() bool) {
	t.Helper()
	for limit := time.Now().Add(10 * time.Second); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("waited in vain")
		}
	}
}

func TestPeers(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		w.notify(a, "b:1", "one")
		w.expect(b, "one")
		lost := w.notify(a, "nobody:1", "lost")
		time.Sleep(time.Second)
		peers := a.Peers()
		if len(peers) != 2 {
			t.Fatalf("%d peers", len(peers))
		}
		p := peers[0]
		if p.Address != "b:1" || p.Name != "b:1" || p.Incarnation != b.incarnation || p.Session != "open" || p.Receiving ||
			p.Pending != 0 || p.Room < 4000 || p.Held || p.Heard.IsZero() || p.Since.IsZero() || len(p.Paths) != 2 || len(p.Usable()) != 2 {
			t.Errorf("b is %+v", p)
		}
		if f := p.Paths[0]; f.Transport != "fast" || f.State != PathUp || f.Instance == 0 || f.PeerInstance == 0 || f.Generation != 1 || f.Since.IsZero() {
			t.Errorf("its path is %+v", f)
		}
		if n := peers[1]; n.Address != "nobody:1" || n.Session != "opening" || n.HelloError == nil || n.Pending != 1 ||
			n.Waiting != 1 || n.OutboxBytes == 0 || !n.Heard.IsZero() || len(n.Paths) != 0 {
			t.Errorf("nobody is %+v", n)
		}
		if back := b.Peers(); len(back) != 1 || back[0].Session != "none" || !back[0].Receiving {
			t.Errorf("at b: %+v", back)
		}

		w.fast.Cut("a:1", "b:1", "")
		d := w.notify(a, "b:1", "two")
		p = a.Peers()[0]
		if p.Sent != 1 || p.Paths[0].InFlight != 1 || p.Paths[0].Pending != 1 || p.Room != peers[0].Room-1 {
			t.Errorf("with one under way: %+v", p)
		}
		_ = w.wait(d)
		w.expect(b, "two")
		w.network.Silence("a:1", "b:1", true)
		w.fast.End("", "", "")
		time.Sleep(time.Minute)
		w.notify(a, "b:1", "three")
		w.expect(b, "three")
		if f := a.Peers()[0].Paths[0]; f.Usable() || f.Trouble == "" {
			t.Errorf("without a connection: %+v", f)
		}
		w.network.Silence("a:1", "b:1", false)
		_ = w.wait(lost)
		w.shut(a, b)
	})
}

func TestAdminSocket(t *testing.T) {
	r := newReal(t)
	path := filepath.Join(shortDir(t), "a.sock")
	a, b := r.open("a:1", AdminConfig{Socket: path}, WithMetrics(prometheus.NewRegistry())), r.open("b:1", AdminConfig{})
	r.talk(a, b)
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket is %v, %v", st.Mode(), err)
	}
	if a.AdminSocket() != path || b.AdminSocket() != "" {
		t.Errorf("%q and %q", a.AdminSocket(), b.AdminSocket())
	}

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c := admin.Dial(path)
	if n, err := c.Node(ctx); err != nil || n.Address != "a:1" || n.PID != os.Getpid() || !n.Ready {
		t.Errorf("node: %+v, %v", n, err)
	}
	if p, err := c.Peers(ctx, 0); err != nil || p.Total != 1 || len(p.Peers) != 1 || p.Peers[0].Address != "b:1" || p.Peers[0].UsablePaths != 1 {
		t.Errorf("peers: %+v, %v", p, err)
	}
	if s, err := c.Stats(ctx); err != nil || s["acked"] != 1 || s["sent"] != 1 || s["dropped_full"] != 0 || len(s) < 25 {
		t.Errorf("stats: %v, %v", s, err)
	}
	before, err := c.Transports(ctx)
	if err != nil || len(before) != 1 || before[0].State != "up" || before[0].Wire != rpcFallbackName {
		t.Fatalf("transports: %+v, %v", before, err)
	}
	after, err := c.Restart(ctx, rpcFallbackName)
	if err != nil || after.State != "up" || after.Instance <= before[0].Instance {
		t.Errorf("restarted: %+v, %v", after, err)
	}
	r.talk(a, b)

	var refused *admin.Error
	if _, err := c.Restart(ctx, "no/such"); !errors.As(err, &refused) || refused.Status != 400 || !strings.Contains(err.Error(), `"no/such"`) {
		t.Errorf("of a transport that is not there: %v", err)
	}
	for _, ask := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/peers?limit=0", 400}, {"GET", "/peers?limit=100000", 400}, {"GET", "/peers?limit=x", 400},
		{"GET", "/transports/rpcfallback/restart", 404}, {"POST", "/peers", 404}, {"GET", "/nothing", 404},
		{"GET", "/healthz", 200}, {"GET", "/metrics", 200}, {"GET", "/readyz", 200}, {"GET", "/", 200},
	} {
		w := httptest.NewRecorder()
		adminHandler(a).ServeHTTP(w, httptest.NewRequest(ask.method, ask.path, nil))
		if w.Code != ask.code {
			t.Errorf("%s %s: %d, want %d", ask.method, ask.path, w.Code, ask.code)
		}
	}

	// A live one is not replaced, and stays.
	if _, err := r.try("c:1", AdminConfig{Socket: path}); !errors.Is(err, Busy) || !strings.Contains(err.Error(), "running process") {
		t.Errorf("over a live one: %v", err)
	}
	if _, err := c.Node(ctx); err != nil {
		t.Error(err)
	}
	r.close(a)
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}
	if _, err := c.Node(ctx); !errors.Is(err, admin.ErrNobody) {
		t.Errorf("after Close: %v", err)
	}
}

// shortDir is a directory whose name leaves room for a socket's.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hw-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func TestAdminSocketLeftBehind(t *testing.T) {
	r := newReal(t)
	path := filepath.Join(shortDir(t), "a.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as a process that is killed leaves it
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	a := r.open("a:1", AdminConfig{Socket: path})
	if _, err := admin.Dial(path).Node(context.Background()); err != nil {
		t.Error(err)
	}

	// What another process put there meanwhile is not removed.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.close(a)
	if got, err := os.ReadFile(path); string(got) != "mine" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := r.try("b:1", AdminConfig{Socket: path}); !errors.Is(err, InvalidArgument) || !strings.Contains(err.Error(), "no socket") {
		t.Errorf("over a file: %v", err)
	}
	if _, err := r.try("b:1", AdminConfig{Socket: filepath.Join(path, "x")}); !errors.Is(err, Unavailable) {
		t.Errorf("below a file: %v", err)
	}
	if _, err := r.try("b:1", AdminConfig{Socket: "/" + strings.Repeat("x", 200)}); !errors.Is(err, InvalidArgument) {
		t.Errorf("a long name: %v", err)
	}
}

func TestAdminSocketAuto(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", shortDir(t))
	r := newReal(t)
	a := r.open("a:1", AdminConfig{Socket: "auto"})
	if got := admin.Discover(); len(got) != 1 || got[0] != a.AdminSocket() || got[0] != admin.Default(os.Getpid()) {
		t.Errorf("found %q, it is %s", got, a.AdminSocket())
	}
	if st, err := os.Stat(admin.Dir()); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	if b := r.open("b:1", AdminConfig{Socket: "off"}); b.AdminSocket() != "" {
		t.Error("off is on")
	}
	r.close(a)
	if err := os.Chmod(admin.Dir(), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := r.try("a:1", AdminConfig{Socket: "auto"}); !errors.Is(err, Unavailable) || !strings.Contains(err.Error(), "0700") {
		t.Errorf("in a directory for all: %v", err)
	}
	if admin.Discover() != nil {
		t.Error("a directory for all is trusted")
	}
}

func TestAdminHTTP(t *testing.T) {
	r := newReal(t)
	a := r.open("a:1", AdminConfig{HTTP: "127.0.0.1:0"})
	reply, err := http.Get("http://" + a.AdminHTTP() + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(reply.Body)
	_ = reply.Body.Close()
	if reply.StatusCode != 200 || !bytes.Contains(body, []byte(`"ready": true`)) {
		t.Errorf("%d %s", reply.StatusCode, body)
	}
	// It is for looking only.
	reply, err = http.Post("http://"+a.AdminHTTP()+"/transports/rpcfallback/restart", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = reply.Body.Close()
	if reply.StatusCode != 404 && reply.StatusCode != 405 {
		t.Errorf("restart over http: %d", reply.StatusCode)
	}
	http.DefaultClient.CloseIdleConnections()
	if _, err := r.try("b:1", AdminConfig{HTTP: a.AdminHTTP()}); !errors.Is(err, Busy) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("an address in use: %v", err)
	}
	if _, err := r.try("b:1", AdminConfig{HTTP: "192.0.2.1:80"}); !errors.Is(err, InvalidArgument) {
		t.Errorf("not loopback: %v", err)
	}
	r.close(a)
	if c, err := net.Dial("tcp", a.AdminHTTP()); err == nil {
		_ = c.Close()
		t.Error("after Close it listens")
	}
}
