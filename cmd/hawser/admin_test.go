package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// runtimeDir gives the program's runs a runtime directory of their own.
func runtimeDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hw-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Setenv("XDG_RUNTIME_DIR", dir)
	return dir
}

// TestAdmin asks a running node as a user does.
func TestAdmin(t *testing.T) {
	dir := runtimeDir(t)
	for _, args := range [][]string{{"peers"}, {"status"}, {"mappings", "list"}, {"mappings", "retire", "x"}, {"plugin", "restart", "tcp"}} {
		if _, errs, code := output(t, hawser(t, args...)); code != 3 || !strings.Contains(errs, "runs no node here") || !strings.Contains(errs, dir) {
			t.Errorf("%v without a node: exit code %d: %s", args, code, errs)
		}
		with := append(args, "--socket", filepath.Join(dir, "none.sock"))
		if _, errs, code := output(t, hawser(t, with...)); code != 3 || !strings.Contains(errs, "no node listens on") {
			t.Errorf("%v: exit code %d: %s", with, code, errs)
		}
	}
	if out, errs, code := output(t, hawser(t, "plugin", "list", "-o", "json")); code != 0 || strings.Contains(out, "running") {
		t.Errorf("list without a node: exit code %d: %s%s", code, out, errs)
	}

	n := start(t, "node", "--name", "first", "--admin-http", "127.0.0.1:0")
	socket := n.up["admin_socket"].(string)
	if st, err := os.Lstat(socket); err != nil || st.Mode() != os.ModeSocket|0o600 || !strings.HasPrefix(socket, dir) {
		t.Errorf("%s is %v, %v", socket, st, err)
	}
	if _, errs, code := output(t, hawser(t, "send", n.address, "--payload", "x")); code != 0 {
		t.Fatalf("exit code %d: %s", code, errs)
	}
	m := start(t, "recv")
	defer func() { _ = m.Process.Signal(syscall.SIGTERM) }()

	out, errs, code := output(t, hawser(t, "status"))
	if code != 0 || !strings.Contains(out, "first at "+n.address+": ready") || !strings.Contains(out, "tcp") {
		t.Errorf("status: exit code %d: %s%s", code, out, errs)
	}
	var s struct {
		Node struct {
			Name  string
			PID   int
			Ready bool
		}
		Transports []struct {
			Name, State string
			PID         int
			Instance    uint64
		}
		Stats map[string]int
	}
	out, errs, code = output(t, hawser(t, "status", "-o", "json"))
	if err := json.Unmarshal([]byte(out), &s); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	if s.Node.Name != "first" || s.Node.PID != n.Process.Pid || !s.Node.Ready || s.Stats["received"] != 1 || len(s.Transports) != 3 || s.Transports[0].Name != "rdma" {
		t.Errorf("got %+v", s)
	}
	tcp := s.Transports[1]

	if out, errs, code = output(t, hawser(t, "peers")); code != 0 {
		t.Errorf("peers: exit code %d: %s%s", code, out, errs)
	}

	out, errs, code = output(t, hawser(t, "plugin", "restart", "tcp", "-o", "json"))
	var after struct {
		State    string
		PID      int
		Instance uint64
	}
	if err := json.Unmarshal([]byte(out), &after); err != nil || code != 0 || after.State != "up" || after.PID == tcp.PID || after.Instance <= tcp.Instance {
		t.Errorf("restart: exit code %d, %v: %s%s", code, err, out, errs)
	}
	if _, errs, code = output(t, hawser(t, "plugin", "restart", "tpc")); code != 1 || !strings.Contains(errs, `"tpc"`) {
		t.Errorf("restart of what is not there: exit code %d: %s", code, errs)
	}
	out, errs, code = output(t, hawser(t, "plugin", "list"))
	if code != 0 || !strings.Contains(out, "first") || !strings.Contains(out, "INSTANCE") {
		t.Errorf("list: exit code %d: %s%s", code, out, errs)
	}
	out, _, _ = output(t, hawser(t, "plugin", "list", "-o", "json"))
	if !strings.Contains(out, `"node": "first"`) {
		t.Errorf("list: %s", out)
	}

	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/"} {
		r, err := http.Get("http://" + n.up["admin_http"].(string) + path)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(r.Body)
		_ = r.Body.Close()
		if r.StatusCode != 200 || path == "/metrics" && !(strings.Contains(string(body), "hawser_notifications_received_total") && strings.Contains(string(body), "go_goroutines")) {
			t.Errorf("%s: %d %s", path, r.StatusCode, body)
		}
	}
	http.DefaultClient.CloseIdleConnections()

	other := start(t, "node", "--name", "second")
	if _, errs, code := output(t, hawser(t, "peers")); code != 1 || !strings.Contains(errs, "first at") || !strings.Contains(errs, "second at") {
		t.Errorf("with two nodes: exit code %d: %s", code, errs)
	}
	if _, _, code := output(t, hawser(t, "peers", "--socket", socket)); code != 0 {
		t.Errorf("with two nodes and --socket: exit code %d", code)
	}
	// What a killed node leaves behind is no node, and goes with the next.
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	left := other.up["admin_socket"].(string)
	if _, errs, code := output(t, hawser(t, "status")); code != 0 {
		t.Errorf("after a kill: exit code %d: %s", code, errs)
	}
	third := start(t, "node", "--admin-socket", filepath.Join(dir, "third.sock"))
	fourth := start(t, "node", "--admin-socket", "off")
	fifth := start(t, "node")
	if fourth.up["admin_socket"] != nil {
		t.Error("off is on")
	}
	if _, err := os.Lstat(left); err == nil {
		t.Error("the socket of a killed node is still there")
	}
	for _, x := range []*node{third, fourth, fifth, n} {
		if err := x.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := x.Wait(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is still there")
	}
}
