package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// said is what a command line printed and exited with.
type said struct {
	code     int
	out, err string
}

// run runs a command line in an empty directory's environment.
func run(t *testing.T, args ...string) said {
	t.Helper()
	return runWith(t, t.Context(), "", args...)
}

func runWith(t *testing.T, ctx context.Context, input string, args ...string) said {
	t.Helper()
	t.Setenv(engine.PluginPathVariable, "")
	t.Setenv(configVariable, "")
	var out, errs bytes.Buffer
	code := Run(ctx, args, Streams{In: strings.NewReader(input), Out: &out, Err: &errs})
	s := said{code, out.String(), errs.String()}
	for _, trace := range []string{"goroutine ", "panic", "Usage:"} {
		if strings.Contains(s.err, trace) {
			t.Errorf("%v printed a dump: %s", args, s.err)
		}
	}
	return s
}

func (s said) check(t *testing.T, code int, parts ...string) {
	t.Helper()
	if s.code != code {
		t.Errorf("exit code %d, want %d", s.code, code)
	}
	for _, p := range parts {
		if !strings.Contains(s.out+s.err, p) {
			t.Errorf("%q is missing", p)
		}
	}
	if t.Failed() {
		t.Fatalf("stdout:\n%sstderr:\n%s", s.out, s.err)
	}
}

// file writes a file and returns its path.
func file(t *testing.T, dir, name, content string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	return path
}

// plugin writes a script that describes itself as a plugin of that name.
func plugin(t *testing.T, dir, name string) string {
	return file(t, dir, "hawser-"+name, `#!/bin/sh
echo '{"name": "`+name+`", "version": "1.2", "contract": 1, "features": ["notify"], "config_schema": {"type": "object", "additionalProperties": false}}'
`, 0o755)
}

func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		args  []string
		parts []string
	}{
		{[]string{"snd"}, []string{`unknown command "snd" for "hawser"; did you mean send?`, "hawser --help"}},
		{[]string{"plugin", "lst"}, []string{`unknown command "lst" for "hawser plugin"; did you mean list?`}},
		{[]string{"nothing-like-it"}, []string{`unknown command "nothing-like-it"`}},
		{[]string{"--nam"}, []string{"unknown flag: --nam"}},
		{[]string{"node", "--nam", "x"}, []string{"unknown flag: --nam; did you mean --name?"}},
		{[]string{"send", "127.0.0.1:1", "--cuont", "1"}, []string{"did you mean --count?"}},
		{[]string{"send"}, []string{"missing argument: the peer"}},
		{[]string{"send", "a:1", "b"}, []string{`unexpected argument "b"`}},
		{[]string{"send", "a:1", "-", "--size", "3"}, []string{"exclude each other"}},
		{[]string{"send", "a:1", "--size", "3", "--payload", "x"}, []string{"--payload and --size exclude each other"}},
		{[]string{"send", "a:1", "--count", "0"}, []string{"--count must be at least 1, not 0"}},
		{[]string{"send", "a:1", "--rate", "-1"}, []string{"--rate must be"}},
		{[]string{"send", "a:1", "--rate", "nan"}, []string{"--rate must be"}},
		{[]string{"send", "a:1", "--rate", "inf"}, []string{"--rate must be"}},
		{[]string{"send", "a:1", "--rate", "1e-300"}, []string{"--rate must be"}},
		{[]string{"send", "a:1", "--rate", "x"}, []string{`--rate: "x" is not a number`}},
		{[]string{"send", "a:1", "--count", "99999999999999999999"}, []string{"--count: 99999999999999999999 is too large"}},
		{[]string{"send", "a:1", "--count", "1.5"}, []string{`--count: "1.5" is not a whole number`}},
		{[]string{"send", "a:1", "--deadline", "5"}, []string{`--deadline: "5" is not a duration, such as 500ms or 10s`}},
		{[]string{"send", "a:1", "--deadline", "601s"}, []string{"--deadline must be at most 10m0s"}},
		{[]string{"send", "a:1", "--transports", ""}, []string{"--transports must name"}},
		{[]string{"send", "a:1", "--plugins-dir", "/nope"}, []string{"--plugins-dir: stat /nope: no such file or directory"}},
		{[]string{"demo", "--plugins-dir", "/nope"}, []string{"--plugins-dir: stat /nope"}},
		{[]string{"bench", "notify", "--plugins-dir", "/nope"}, []string{"--plugins-dir: stat /nope"}},
		{[]string{"bench", "notify", "--size", "99999999"}, []string{"--size must be at most"}},
		{[]string{"bench", "notify", "--pings", "0", "--burst", "0", "--rate-count", "0"}, []string{"nothing would be measured"}},
		{[]string{"send", "a:1", "--file", "/nonexistent/x"}, []string{"--file: open /nonexistent/x"}},
		{[]string{"send", "a:1", "--size", "99999999"}, []string{"notification.max_payload_bytes"}},
		{[]string{"send", "a:1", "--peer", "b"}, []string{"--peer must be NAME=HOST:PORT"}},
		{[]string{"recv", "x"}, []string{`unexpected argument "x": this command takes none`}},
		{[]string{"recv", "--count", "-1"}, []string{"--count must not be negative, as -1 is"}},
		{[]string{"recv", "-o", "xml"}, []string{"must be text or json"}},
		{[]string{"node", "--listen", "0.0.0.0:1"}, []string{"control.listen", "not a loopback address"}},
		{[]string{"node", "--log-level", "loud"}, []string{"--log-level"}},
		{[]string{"node", "--transports", "T!"}, []string{"--transports: \"T!\" is no name of a transport: 1 to 32 of [a-z0-9-]"}},
		{[]string{"demo", "--row", "nosuch"}, []string{`no row is called "nosuch"; there are "no fault"`}},
		{[]string{"demo", "--row", "killed"}, []string{`more than one row matches "killed": "tcp killed", "all killed"`}},
		{[]string{"demo", "--count", "3"}, []string{"--count must be 400"}},
		{[]string{"bench", "notify", "--rounds", "0"}, []string{"--rounds must be at least 1, not 0"}},
		{[]string{"bench", "notify", "--transport", "T!"}, []string{"--transport: \"T!\" is no name of a transport"}},
		{[]string{"bench", "transfer", "--rounds", "0"}, []string{"must be at least 1"}},
		{[]string{"bench", "transfer", "--transport", "T!"}, []string{"--transport: \"T!\" is no name of a transport"}},
		{[]string{"bench", "transfer", "--size", "0"}, []string{"--size must be 1 to"}},
		{[]string{"bench", "transfer", "--size", "1073741824"}, []string{"--size must be 1 to 268435456"}},
		{[]string{"bench", "transfer", "--op", "copy"}, []string{"read or write, not \"copy\""}},
		{[]string{"bench", "transfer", "--op", "read", "--op", "read"}, []string{"--op names read twice"}},
		{[]string{"bench", "transfer", "--plugins-dir", "/nope"}, []string{"--plugins-dir: stat /nope"}},
		{[]string{"plugin", "describe"}, []string{"missing argument: a plugin's name"}},
		{[]string{"plugin", "verify", "nosuch"}, []string{`no plugin "nosuch" is configured`}},
		{[]string{"config", "check", "a", "--config", "b"}, []string{"exclude each other"}},
		{[]string{"config", "show", "/nonexistent/x.yaml"}, []string{"/nonexistent/x.yaml: no such file"}},
	} {
		t.Run(strings.Join(tt.args, " "), func(t *testing.T) {
			run(t, tt.args...).check(t, exitUsage, tt.parts...)
		})
	}
}

func TestErrorsAsJSON(t *testing.T) {
	for _, args := range [][]string{{"send", "-o", "json"}, {"send", "a:1", "--count", "x", "-o", "json"}, {"node", "--config", "/nope", "--output=json"}} {
		var e struct {
			Error    string
			ExitCode int `json:"exit_code"`
		}
		if decode(t, run(t, args...), exitUsage, &e); e.Error == "" || e.ExitCode != exitUsage {
			t.Errorf("%v: got %+v", args, e)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{}, {"--help"}, {"plugin"}, {"send", "--help"}, {"demo", "--help"}} {
		run(t, args...).check(t, exitOK, "Usage:")
	}
	s := run(t, "--help")
	s.check(t, exitOK, "Exit codes:", "130  interrupted")
	if strings.Contains(s.out, "demo-node") || strings.Contains(s.out, "bench-node") {
		t.Error("hidden commands show")
	}
}

func TestConfigCheck(t *testing.T) {
	dir := t.TempDir()
	plugin(t, dir, "fine")
	bad := file(t, dir, "bad.yaml", "node:\n  name: a\nnotification:\n  prot: 2\n  deadline_ms: x\n", 0o644)
	run(t, "config", "check", bad).check(t, exitUsage,
		bad+":4:3: notification.prot: unknown key; did you mean proto?", bad+":5:16: notification.deadline_ms: ")
	var r checkJSON
	decode(t, run(t, "config", "check", bad, "-o", "json"), exitUsage, &r)
	if r.OK || r.File != bad || len(r.Faults) != 2 || r.Faults[0].Line != 4 || r.Faults[0].Column != 3 || r.Faults[0].Key != "notification.prot" {
		t.Errorf("got %+v", r)
	}

	good := file(t, dir, "good.yaml", "notification: {rpc_fallback: false}\nplugins: {dir: "+dir+"}\ntransports: [{name: fine}]\n", 0o644)
	run(t, "config", "check", good).check(t, exitOK, good+": ok")
	run(t, "config", "check", "--config", good).check(t, exitOK, good+": ok")
	t.Run("by the environment", func(t *testing.T) {
		t.Setenv("HAWSER_NOTIFICATION_PROTO", "9")
		run(t, "config", "check", good).check(t, exitUsage, "HAWSER_NOTIFICATION_PROTO: notification.proto: must be 0 to 2, not 9")
	})

	unknown := file(t, dir, "unknown.yaml", "plugins: {dir: "+dir+"}\nnotification: {rpc_fallback: false}\ntransports: [{name: tpc}]\n", 0o644)
	missing := "plugin tpc was not found; looked at " + filepath.Join(dir, "hawser-tpc")
	run(t, "config", "check", unknown).check(t, exitOK, "warning: ", missing)
	run(t, "config", "check", "--strict", unknown).check(t, exitUsage, missing)

	keys := sdktest.NewAuthority(t, "ca").Issue("node", nil)
	ca, cert, key := sdktest.WriteKeys(t, dir, keys)
	secure := file(t, dir, "secure.yaml", "notification: {rpc_fallback: false}\nplugins: {dir: "+dir+"}\ntransports: [{name: fine}]\n"+
		"security:\n  ca: "+ca+"\n  cert: "+cert+"\n  key: "+key+"\n", 0o644)
	run(t, "config", "check", secure).check(t, exitOK, secure+": ok")
	if err := os.Chmod(key, 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, "config", "check", secure).check(t, exitUsage, secure+":7:3: security.key: "+key+": its permissions are 0644")
	decode(t, run(t, "config", "check", secure, "-o", "json"), exitUsage, &r)
	if len(r.Faults) != 1 || r.Faults[0].Key != "security.key" || r.Faults[0].Line != 7 {
		t.Errorf("got %+v", r)
	}

	settings := file(t, dir, "settings.yaml",
		"plugins: {dir: "+dir+"}\nnotification: {rpc_fallback: false}\ntransports: [{name: fine, config: {bogus: 1}}]\n", 0o644)
	run(t, "config", "check", settings).check(t, exitUsage, settings+":3:36: transports[0].config.bogus: unknown key")
	listen := file(t, dir, "listen.yaml",
		"plugins: {dir: "+dir+"}\nnotification: {rpc_fallback: false}\ntransports: [{name: fine, config: {listen: '0.0.0.0:1'}}]\n", 0o644)
	run(t, "config", "check", listen).check(t, exitUsage, listen+":3:36: transports[0].config.listen: \"0.0.0.0:1\" is not a loopback address")
}

func TestConfigShow(t *testing.T) {
	path := file(t, t.TempDir(), "c.yaml", "node:\n  name: here\n", 0o644)
	run(t, "config", "show", path).check(t, exitOK, `name: "here"  # `+path+":2", "# default")
	var settings []engine.Setting
	decode(t, run(t, "config", "show", path, "-o", "json"), exitOK, &settings)
	if len(settings) == 0 || settings[0].Key != "node.name" || settings[0].Value != "here" {
		t.Errorf("got %+v", settings)
	}
	var schema map[string]any
	decode(t, run(t, "config", "schema"), exitOK, &schema)
	if schema["title"] == nil {
		t.Errorf("got %v", schema)
	}
}

func decode(t *testing.T, s said, code int, v any) {
	t.Helper()
	s.check(t, code)
	if err := json.Unmarshal([]byte(s.out), v); err != nil {
		t.Fatalf("%v: %s", err, s.out)
	}
}

func TestPluginCommands(t *testing.T) {
	dir := t.TempDir()
	path := plugin(t, dir, "fine")
	cfg := file(t, dir, "c.yaml", "notification: {rpc_fallback: false}\nplugins: {dir: "+dir+"}\ntransports: [{name: fine}, {name: gone}]\n", 0o644)
	with := func(args ...string) said { t.Helper(); return run(t, append(args, "--config", cfg)...) }

	with("plugin", "list").check(t, exitOK, "fine", "not in the lock", path, "missing", "looked at "+filepath.Join(dir, "hawser-gone"))
	var list []pluginJSON
	decode(t, with("plugin", "list", "-o", "json"), exitOK, &list)
	if len(list) != 2 || list[0].Path != path || list[0].State != "not in the lock" || len(list[0].SHA256) != 64 || list[1].State != "missing" {
		t.Errorf("got %+v", list)
	}

	with("plugin", "describe", "fine").check(t, exitOK, "fine 1.2 ("+path+")", "notify")
	var d descriptionJSON
	decode(t, with("plugin", "describe", path, "-o", "json"), exitOK, &d)
	if d.Name != "fine" || d.Path != path || d.Limits.MaxFrame == 0 {
		t.Errorf("got %+v", d)
	}
	with("plugin", "describe", "gone").check(t, exitUnable, "looked at "+filepath.Join(dir, "hawser-gone"))
	with("plugin", "describe", "/bin/false").check(t, exitUnable, "is it a Hawser plugin?")

	with("plugin", "verify", "fine").check(t, exitFailed, "fine: not in the lock", "--update")
	with("plugin", "verify", "--update").check(t, exitOK, "written to "+filepath.Join(dir, "plugins.lock")+": fine", "gone: missing")
	with("plugin", "verify", "hawser-fine").check(t, exitOK, "fine: approved")
	file(t, dir, "hawser-fine", "#!/bin/sh\n", 0o755)
	with("plugin", "verify", "fine").check(t, exitFailed, "fine: changed: "+path, "approved is ")
	with("plugin", "describe", "fine").check(t, exitUnable, "is not the one that was approved")
	var v verifyJSON
	decode(t, with("plugin", "verify", "fine", "--update", "-o", "json"), exitOK, &v)
	if !v.OK || len(v.Updated) != 1 || v.Plugins[0].State != "approved" {
		t.Errorf("got %+v", v)
	}
	file(t, dir, "plugins.lock", "rubbish\n", 0o644)
	with("plugin", "list").check(t, exitUnable, filepath.Join(dir, "plugins.lock")+":1: expected a SHA-256")
}

func TestEngineCannotStart(t *testing.T) {
	dir := t.TempDir()
	alone := file(t, dir, "c.yaml", "notification: {rpc_fallback: false}\nplugins: {dir: "+dir+"}\ntransports: [{name: gone}]\n", 0o644)
	for _, args := range [][]string{{"node"}, {"recv"}, {"send", "127.0.0.1:1"}} {
		run(t, append(args, "--config", alone)...).check(t, exitUnable,
			"hawser: the engine could not start: no transport could be started", "looked at "+filepath.Join(dir, "hawser-gone"))
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	at := taken.Addr().String()
	run(t, "node", "--config", alone, "--listen", at).check(t, exitUnable, "listen on "+at, "in use")
	run(t, "demo", "--plugins-dir", dir).check(t, exitUnable, "plugin tcp was not found; looked at "+filepath.Join(dir, "hawser-tcp"))
	run(t, "bench", "notify", "--plugins-dir", dir).check(t, exitUnable, "plugin tcp was not found")
}

func TestPayloadFromStdin(t *testing.T) {
	cfg := file(t, t.TempDir(), "c.yaml", "notification: {max_payload_bytes: 20}\n", 0o644)
	runWith(t, t.Context(), strings.Repeat("x", 30), "send", "127.0.0.1:1", "-", "--config", cfg).
		check(t, exitUsage, "standard input: more than the 9 bytes")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	runWith(t, ctx, "", "demo", "--row", "1", "--plugins-dir", twoPlugins(t)).check(t, exitInterrupted, "hawser: interrupted")
	s := runWith(t, ctx, "", "demo", "--row", "1", "--plugins-dir", twoPlugins(t), "-o", "json")
	s.check(t, exitInterrupted, "hawser: interrupted")
	if s.out != `{"error":"interrupted","exit_code":130}`+"\n" {
		t.Errorf("got %s", s.out)
	}
}

// twoPlugins are files that can be found, and no plugins.
func twoPlugins(t *testing.T) string {
	dir := t.TempDir()
	plugin(t, dir, "tcp")
	plugin(t, dir, "rpcfallback")
	return dir
}

func TestVersionAndRows(t *testing.T) {
	var v versionJSON
	decode(t, run(t, "version", "-o", "json"), exitOK, &v)
	if v.Contract == 0 || v.Go == "" {
		t.Errorf("got %+v", v)
	}
	run(t, "version").check(t, exitOK, "hawser ", "contract 1")
	run(t, "demo", "--list").check(t, exitOK, "1  no fault", "6  receiver restarted", "11  reader away")
	run(t, "demo", "--help").check(t, exitOK, "1  no fault", "16  a million")
	run(t, "demo", "--list", "--row", "reader away").check(t, exitOK, "11  reader away")
	var rows []map[string]any
	decode(t, run(t, "demo", "--list", "-o", "json"), exitOK, &rows)
	if len(rows) != 16 || rows[0]["name"] != "no fault" {
		t.Errorf("got %v", rows)
	}
}
