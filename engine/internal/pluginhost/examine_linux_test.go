package pluginhost

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// examining is a transport that can examine.
type examining struct {
	player
	find func(json.RawMessage) []sdk.Finding
}

func examiner(find func(json.RawMessage) []sdk.Finding) sdk.Transport {
	return &examining{player{listens: true}, find}
}

func (e *examining) Examine(_ context.Context, settings json.RawMessage) []sdk.Finding {
	return e.find(settings)
}

// examined finds its settings and its environment, while a library of its
// prints to standard output.
func examined(settings json.RawMessage) []sdk.Finding {
	_, _ = syscall.Write(1, []byte("UCX says hello\n"))
	return []sdk.Finding{
		{Subject: "settings", State: sdk.FindingOK, Found: string(settings)},
		{Subject: "environment", State: sdk.FindingWarning, Found: os.Getenv("LENT"), Do: "look\nhere"},
	}
}

func nonsense(json.RawMessage) []sdk.Finding {
	list := []sdk.Finding{{Subject: strings.Repeat("x", 4*maxFindingText), State: sdk.FindingOK}, {State: "fine"}}
	for range 2 * maxFindings {
		list = append(list, sdk.Finding{Subject: "one of many", State: sdk.FindingOK})
	}
	return list
}

// answersDoctor is a plugin that answers --doctor otherwise than the sdk does.
func answersDoctor(code int, stderr, stdout string) {
	if len(os.Args) < 2 || os.Args[1] != "--doctor" {
		sdk.Serve(&player{})
	}
	fmt.Fprint(os.Stderr, stderr)
	fmt.Print(stdout)
	os.Exit(code)
}

// found writes findings as lines.
func found(list []sdk.Finding) string {
	var b strings.Builder
	for _, f := range list {
		fmt.Fprintf(&b, "%s|%s|%s|%s\n", f.Subject, f.State, f.Found, f.Do)
	}
	return b.String()
}

// Whatever a plugin does with --doctor is a finding, in time.
func TestExamine(t *testing.T) {
	for _, c := range []struct {
		name string
		want []string
	}{
		{"examiner", []string{`settings|ok|{"listen":"127.0.0.1:0"}|`, `environment|warning|lent|look\x0ahere`, "plugin|ok|player 1.0 /", "config.listen|ok|127.0.0.1:0 can"}},
		{"good", []string{"examination|ok|it has none of its own|"}},
		{"hangs", []string{"examination|problem|it has not ended within 2s and was killed; its last words: asking the driver|run `/"}},
		{"crashes", []string{"examination|problem|it ended with exit status 2; its last words: ", "|run `/"}},
		{"nonsense", []string{"xxx...|ok", `examination|problem|it has a finding of state "fine", which is none`, "it has 514 findings; 256 are shown"}},
		{"no doctor", []string{"examination|warning|its binary knows no --doctor", "|rebuild it"}},
		{"other", []string{"examination|problem|its answer is not what a Hawser plugin says: all is well|"}},
		{"too much", []string{"examination|problem|its answer has more than 1048576 bytes"}},
		{"contract", []string{"binary|problem|/", "built with version 99"}},
		{"nosuch actor", []string{"binary|problem|/", "is it a Hawser plugin?"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec, patience := actor(t, c.name), time.Minute
			if c.name == "hangs" {
				patience = 2 * time.Second
			}
			spec.Env["LENT"] = "lent"
			if c.name == "examiner" || c.name == "hangs" || c.name == "crashes" || c.name == "nonsense" {
				spec.Settings = json.RawMessage(`{"listen":"127.0.0.1:0"}`)
			}
			began := time.Now()
			_, list := Examine(t.Context(), spec, Options{StartTimeout: patience})
			got := found(list)
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("no %q in\n%s", want, got)
				}
			}
			if n := strings.Count(got, "one of many"); n > maxFindings {
				t.Errorf("%d findings", n)
			}
			if d := time.Since(began); c.name == "hangs" && d > 20*time.Second || len(got) > 64<<10 {
				t.Errorf("%v, %d bytes", d, len(got))
			}
		})
	}
}

// The binary has to be the approved one, and the settings ones that the plugin
// takes, before it is run any further.
func TestExamineVerifies(t *testing.T) {
	other := actor(t, "examiner")
	other.SHA256 = strings.Repeat("0", 64)
	missing := actor(t, "examiner")
	missing.Path = "/nowhere/hawser-t"
	reserved := actor(t, "examiner")
	reserved.Env["HAWSER_PLUGIN_X"] = "x"
	settings := actor(t, "examiner")
	settings.Settings = json.RawMessage(`{"lisen": 1}`)
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{other, "binary|problem|plugin binary " + self(t) + " is not the one that was approved"},
		{missing, "binary|problem|no plugin binary at /nowhere/hawser-t"},
		{reserved, "env|problem|env: HAWSER_PLUGIN_X is reserved"},
		{settings, "settings|problem|config"},
	} {
		_, list := Examine(t.Context(), c.spec, Options{})
		if got := found(list); !strings.Contains(got, c.want) || strings.Contains(got, "environment") {
			t.Errorf("no %q in\n%s", c.want, got)
		}
	}
}

// Addresses are judged as when the transport starts, and nobody's is taken.
func TestExamineListeners(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.7.3:0") // of its own: once let go, nobody else takes it
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := func(address string) Spec {
		s := Spec{Name: "t", InProcess: func() sdk.Transport { return examiner(examined) }}
		s.Settings, _ = json.Marshal(map[string]string{"listen": address})
		return s
	}
	for _, c := range []struct {
		address, want string
		opts          Options
	}{
		{"127.0.0.1:0", "|ok|127.0.0.1:0 can be listened on|", Options{}},
		{"[::1]:0", "|ok|[::1]:0 can be listened on|", Options{}},
		{taken.Addr().String(), "|warning|" + taken.Addr().String() + " is listened on already", Options{}},
		{"0.0.0.0:0", "|problem|without mutual TLS only loopback", Options{}},
		{"0.0.0.0:0", "|ok|0.0.0.0:0 can", Options{CheckListen: func(string) error { return nil }}},
		{"192.0.2.1:0", "|problem|192.0.2.1:0: cannot assign", Options{CheckListen: func(string) error { return nil }}},
		{"nonsense", `|problem|config.listen: "nonsense" is not "host:port"`, Options{}},
	} {
		_, list := Examine(t.Context(), at(c.address), c.opts)
		if got := found(list); !strings.Contains(got, "config.listen"+c.want) {
			t.Errorf("%s: no %q in\n%s", c.address, c.want, got)
		}
	}
	// Who listens is listening still, and whoever comes next may.
	if c, err := net.Dial("tcp", taken.Addr().String()); err != nil {
		t.Error(err)
	} else {
		_ = c.Close()
	}
	address := taken.Addr().String()
	_ = taken.Close()
	_, _ = Examine(t.Context(), at(address), Options{})
	if l, err := net.Listen("tcp", address); err != nil {
		t.Error(err)
	} else {
		_ = l.Close()
	}
}

func TestExamineHost(t *testing.T) {
	dir := shortDir(t)
	got := found(ExamineHost(Options{RunDir: dir}))
	if !strings.Contains(got, "run directory|ok|"+dir+"|") || !strings.Contains(got, "open files|") {
		t.Error(got)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
	for _, bad := range []string{dir + "/nosuch", dir + strings.Repeat("x", 200)} {
		if got := found(ExamineHost(Options{RunDir: bad})); !strings.Contains(got, "run directory|problem|") {
			t.Errorf("%s: %s", bad, got)
		}
	}
}
