package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Without faults it is a transport like any other, as a binary too.
func TestConformance(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "hawser-faulty")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	h := sdktest.Harness{
		Settings: json.RawMessage(`{"accept_wait_ms": 1000, "connect_timeout_ms": 1000}`),
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"lisen": "127.0.0.1:0"}`),
			json.RawMessage(`{"faults": {"send": {"drop": 2}}}`),
			json.RawMessage(`{"faults": {"sedn": {}}}`),
			json.RawMessage(`{"faults": {"max_delay_ms": -1}}`),
		},
		Arrive: time.Second, Inbox: true,
	}
	t.Run("in process", func(t *testing.T) {
		h := h
		h.New = func(testing.TB) sdk.Transport { return newPlugin(tcptransport.New()) }
		sdktest.Run(t, h)
	})
	t.Run("binary", func(t *testing.T) {
		h := h
		h.New = func(t testing.TB) sdk.Transport { return sdktest.Binary(t, binary) }
		h.External = true
		sdktest.Run(t, h)
	})
}

func TestDescribe(t *testing.T) {
	d := newPlugin(tcptransport.New()).Describe()
	var schema struct {
		Properties map[string]json.RawMessage
	}
	if err := json.Unmarshal(d.ConfigSchema, &schema); err != nil {
		t.Fatal(err)
	}
	if d.Name != tcptransport.Name || schema.Properties["faults"] == nil || schema.Properties["advertise"] == nil {
		t.Errorf("%s, %s", d.Name, d.ConfigSchema)
	}
}

// The socket sets faults, hangs and resumes, and tells what fired.
func TestControl(t *testing.T) {
	dir, err := os.MkdirTemp("", "hf")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "c")
	stale, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	stale.SetUnlinkOnClose(false)
	_ = stale.Close()
	p := newPlugin(tcptransport.New())
	if _, err := p.Configure(t.Context(), sdk.Config{
		Instance: 1, Incarnation: sdk.Incarnation{15: 1},
		Settings: json.RawMessage(fmt.Sprintf(`{"faults": {"seed": 7, "control": %q, "send": {"drop": 0.5}}}`, path)),
	}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	ask := func(line string) (a answer) {
		t.Helper()
		if _, err := conn.Write([]byte(line + "\n")); err != nil {
			t.Fatal(err)
		}
		got, err := in.ReadBytes('\n')
		if err != nil || json.Unmarshal(got, &a) != nil {
			t.Fatalf("%s: %v", got, err)
		}
		return a
	}
	if a := ask(`{}`); a.PID != os.Getpid() || a.Error != "" {
		t.Errorf("%+v", a)
	}
	if a := ask(`{"do": "hang"}`); a.Counts.Hangs != 1 {
		t.Errorf("%+v", a)
	}
	if a := ask(`{"do": "resume", "set": {"receive": {"double": 0.25}, "max_delay_ms": 5}}`); a.Error != "" {
		t.Errorf("%+v", a)
	}
	for _, bad := range []string{`{"do": "explode"}`, `{"set": {"unknown": 3}}`, `rubbish`} {
		if a := ask(bad); a.Error == "" {
			t.Errorf("%s: no error", bad)
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket is still there")
	}
	_ = conn.Close()
}
