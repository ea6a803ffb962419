package engine

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// examiner is a transport that finds one thing.
type examiner struct {
	sdk.Transport
	finding sdk.Finding
}

func (e examiner) Examine(context.Context, json.RawMessage) []sdk.Finding {
	return []sdk.Finding{e.finding}
}

func TestExamine(t *testing.T) {
	t.Setenv(PluginPathVariable, "")
	fabric := sdktest.NewFabric(sdktest.FabricOptions{Name: "x"})
	find := func(name string, state sdk.FindingState, optional bool) TransportConfig {
		return TransportConfig{Name: name, optional: optional, InProcess: func() sdk.Transport {
			return examiner{fabric.New(name), sdk.Finding{Subject: "s", State: state, Found: "f", Do: "d"}}
		}}
	}
	cfg := Config{
		Plugins:      PluginsConfig{Dir: t.TempDir(), RunDir: t.TempDir()},
		Notification: NotificationConfig{RPCFallback: new(false)},
		Transports: []TransportConfig{
			find("ok", FindingOK, false), find("warning", FindingWarning, true), find("problem", FindingProblem, true),
			find("absent", FindingAbsent, false), find("optional", FindingAbsent, true), {Name: "missing"}, {Name: "neither", optional: true},
			{Name: "plain", InProcess: func() sdk.Transport { return fabric.New("plain") }},
		},
	}
	_, list, err := Examine(t.Context(), cfg)
	if err != nil || len(list) != len(cfg.Transports) {
		t.Fatal(list, err)
	}
	for i, want := range []struct {
		carries, troubled bool
		subject           string
		state             sdk.FindingState
	}{
		{true, false, "s", FindingOK}, {true, false, "s", FindingWarning}, {false, true, "s", FindingProblem},
		{false, true, "s", FindingAbsent}, {false, false, "s", FindingAbsent},
		{false, true, "plugin", FindingProblem}, {false, false, "plugin", FindingAbsent}, {true, false, "plugin", FindingOK},
	} {
		x := list[i]
		last := x.Findings[len(x.Findings)-1]
		if x.Transport != cfg.Transports[i].Name || x.Carries() != want.carries || x.Troubled() != want.troubled || last.Subject != want.subject || last.State != want.state {
			t.Errorf("%+v, want %+v", x, want)
		}
	}
}

// What concerns every transport is apart.
func TestExamineHere(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	states := func(c Config) string {
		here, _, err := Examine(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, f := range here {
			b.WriteString(f.Subject + "|" + string(f.State) + "|" + f.Found + "\n")
		}
		return b.String()
	}
	cfg := Config{Transports: []TransportConfig{}, Plugins: PluginsConfig{Dir: t.TempDir(), RunDir: t.TempDir()}, Security: secureFiles(t, ca.Issue("node", nil))}
	got := states(cfg)
	for _, want := range []string{"plugins|ok|" + cfg.Plugins.Dir, "security|", "the certificate of node, until "} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	cfg.Security.Key = filepath.Join(t.TempDir(), "gone")
	if got := states(cfg); !strings.Contains(got, "security.key|problem|open "+cfg.Security.Key) {
		t.Error(got)
	}
	cfg.Plugins.Lock = filepath.Join(t.TempDir(), "gone")
	if _, _, err := Examine(t.Context(), cfg); err == nil {
		t.Error("a lock that is not there will do")
	}
}
