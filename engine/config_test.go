package engine

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/hawser-transport/hawser/sdk"
)

func TestZeroConfigIsTheDefault(t *testing.T) {
	c, err := Config{}.Effective()
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	if c.Node.Name != host && c.Node.Name != "localhost" {
		t.Errorf("node.name is %q", c.Node.Name)
	}
	if *c.Notification.Proto != 2 || !*c.Notification.RPCFallback || !*c.PeerHealth.Enable {
		t.Errorf("got %+v", c)
	}
	for got, want := range map[time.Duration]time.Duration{
		c.Notification.Deadline(): time.Minute, c.RPC.ConnectTimeout(): 30 * time.Second,
		c.RPC.ProbeTimeout(): 2 * time.Second, c.PeerHealth.MaxAge(): 10 * time.Minute,
		c.PathHealth.MaxCooldown(): 5 * time.Minute, c.Plugins.RestartBackoff(): 100 * time.Millisecond,
	} {
		if got != want {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	want := []TransportConfig{
		{Name: "rdma", Plugin: "hawser-rdma", Config: json.RawMessage("{}"), Keys: new(false), optional: true},
		{Name: "tcp", Plugin: "hawser-tcp", Config: json.RawMessage("{}"), Keys: new(true)},
		{Name: "mnnvl", Plugin: "hawser-mnnvl", Config: json.RawMessage("{}"), Keys: new(false), optional: true, onDemand: true},
		{Name: "rpcfallback", Plugin: "hawser-rpcfallback", Config: json.RawMessage("{}"), Keys: new(true)},
	}
	if !reflect.DeepEqual(c.Transports, want) {
		t.Errorf("got %+v", c.Transports)
	}
	again, err := c.Effective()
	if err != nil || !reflect.DeepEqual(again, c) {
		t.Errorf("filling twice changes something: %v", err)
	}
}

func TestEffectiveCopies(t *testing.T) {
	c := Config{
		Notification: NotificationConfig{Proto: new(0), RPCFallback: new(false)},
		PeerHealth:   PeerHealthConfig{Enable: new(false)},
		Registry:     RegistryConfig{Type: "static", Static: map[string]string{"a": "127.0.0.1:1"}},
		Transports:   []TransportConfig{{Name: "x", Env: map[string]string{"A": "b"}, Config: json.RawMessage(`{"a":1}`)}},
	}
	e, err := c.Effective()
	if err != nil {
		t.Fatal(err)
	}
	if *e.Notification.Proto != 0 || *e.Notification.RPCFallback || *e.PeerHealth.Enable || len(e.Transports) != 1 {
		t.Errorf("what was set did not stay: %+v", e)
	}
	*e.Notification.Proto = 1
	e.Registry.Static["b"] = "x"
	e.Transports[0].Env["A"], e.Transports[0].Name, e.Transports[0].Config[0] = "c", "y", '!'
	if *c.Notification.Proto != 0 || len(c.Registry.Static) != 1 || c.Transports[0].Env["A"] != "b" ||
		c.Transports[0].Plugin != "" || string(c.Transports[0].Config) != `{"a":1}` {
		t.Errorf("the caller's was written: %+v", c)
	}
}

// Every field of the tree is in the table, once, with a documented default
// that is itself valid.
func TestTableIsComplete(t *testing.T) {
	var c Config
	fields := map[any]string{}
	for _, k := range configKeys {
		p := k.field(&c)
		if other, ok := fields[p]; ok {
			t.Errorf("%s and %s are one field", k.path, other)
		}
		fields[p] = k.path
		if k.doc == "" {
			t.Errorf("%s is not documented", k.path)
		}
		if d, ok := k.def.(int); ok && k.checkInt(int64(d)) != "" {
			t.Errorf("%s: the default is not valid", k.path)
		}
	}
	v := reflect.ValueOf(&c).Elem()
	for i := range v.NumField() {
		s := v.Field(i)
		if s.Kind() != reflect.Struct {
			continue
		}
		for j := range s.NumField() {
			path, ok := fields[s.Field(j).Addr().Interface()]
			name := v.Type().Field(i).Name + "." + s.Type().Field(j).Name
			if !ok {
				t.Errorf("%s has no key", name)
			} else if got := strings.ReplaceAll(path, "_", ""); !strings.EqualFold(got, name) {
				t.Errorf("%s has the key %s", name, path)
			}
		}
	}
}

func TestParse(t *testing.T) {
	c, err := ParseConfig([]byte(`
node: {name: "n1"}
control:
  listen: 127.0.0.1:7000
notification:
  rpc_fallback: false
  proto: 0
rpc:
  connect_timeout_ms: -1
registry:
  type: static
  static:
    a: 127.0.0.1:1
    "b": localhost:2
outbox: # nothing here
transports:
  - name: rdma
    sha256: `+strings.Repeat("ab", 32)+`
    config: {device: mlx5_0, gid: 3, list: [1, true, null, 1.5, "x"], deep: {a: {}}}
    env: {A: "1"}
  - name: tcp
    plugin: ./hawser-tcp
`), "test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Node:         NodeConfig{Name: "n1"},
		Control:      ControlConfig{Listen: "127.0.0.1:7000"},
		Notification: NotificationConfig{RPCFallback: new(false), Proto: new(0)},
		RPC:          RPCConfig{ConnectTimeoutMS: -1},
		Registry:     RegistryConfig{Type: "static", Static: map[string]string{"a": "127.0.0.1:1", "b": "localhost:2"}},
		Transports: []TransportConfig{
			{Name: "rdma", SHA256: strings.Repeat("ab", 32), Env: map[string]string{"A": "1"},
				Config: json.RawMessage(`{"deep":{"a":{}},"device":"mlx5_0","gid":3,"list":[1,true,null,1.5,"x"]}`)},
			{Name: "tcp", Plugin: "./hawser-tcp"},
		},
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	for _, empty := range []string{"", "\n", "# only a comment\n", "---\n", "{}"} {
		if c, err := ParseConfig([]byte(empty), "x"); err != nil || !reflect.DeepEqual(c, Config{}) {
			t.Errorf("%q: %+v, %v", empty, c, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		name, file, want string
	}{
		{"unknown section", "notifications:\n  proto: 1\n", "c.yaml:1:1: notifications: unknown key; did you mean notification?"},
		{"unknown key", "notification:\n  porto: 1\n", "c.yaml:2:3: notification.porto: unknown key; did you mean proto?"},
		{"nothing near", "sessions:\n  zzzzzzz: 1\n", "c.yaml:2:3: sessions.zzzzzzz: unknown key; known are max"},
		{"wrong type", "notification:\n  proto: two\n", "c.yaml:2:10: notification.proto: must be a whole number, not a string"},
		{"fraction", "notification:\n  proto: 1.5\n", "c.yaml:2:10: notification.proto: must be a whole number, not 1.5; write all its digits, without a point or an exponent"},
		{"quoted number", "notification:\n  proto: \"1\"\n", "must be a whole number, not a string"},
		{"no value", "notification:\n  proto:\n", "notification.proto: must be a whole number, not nothing"},
		{"quoted bool", "notification:\n  rpc_fallback: \"true\"\n", "must be true or false, not a string"},
		{"number as string", "node:\n  name: 12\n", "must be a string, not a whole number; put it in quotes"},
		{"explicit zero", "notification:\n  slot_wait_ms: 0\n", "c.yaml:2:17: notification.slot_wait_ms: must be 1 to 600000, not 0"},
		{"too large", "notification:\n  deadline_ms: 600001\n", "must be 1 to 600000"},
		{"huge", "notification:\n  deadline_ms: 18446744073709551615\n", "is too large"},
		{"minus two", "rpc:\n  request_timeout_ms: -2\n", "must be -1 or 1 to 600000, not -2"},
		{"duplicate key", "notification:\n  proto: 1\n  proto: 2\n", "c.yaml:3:3: "},
		{"duplicate section", "node:\n  name: a\nnode:\n  name: b\n", "c.yaml:3:1: "},
		{"section is a list", "node:\n  - a\n", "c.yaml:2:3: node: node must be a mapping, not a list"},
		{"file is a scalar", "hello\n", "the file must be a mapping, not a string"},
		{"two documents", "node: {}\n---\nnode: {}\n", "more than one document"},
		{"syntax", "node: [\n", "c.yaml:1:"},
		{"tab", "node:\n\tname: a\n", "c.yaml:2:"},
		{"alias", "node: &x {name: a}\ncontrol: *x\n", "anchor or alias"},
		{"enum", "registry:\n  type: ectd\n", "must be p2p or static"},
		{"relation", "notification:\n  deadline_ms: 500\n", "c.yaml:2:3: notification.deadline_ms: is 500, less than notification.ack_timeout_ms (1000)"},
		{"relation, other key set", "notification:\n  ack_timeout_ms: 60001\n", "c.yaml:2:3: notification.deadline_ms: is 60000, less than notification.ack_timeout_ms (60001)"},
		{"cooldown", "path_health:\n  cooldown_secs: 29\n", "c.yaml:2:3: path_health.cooldown_secs: is 29s, less than rpc.connect_timeout_ms (30s)"},
		{"max cooldown", "peer_health:\n  max_cooldown_ms: 4999\n", "less than peer_health.cooldown_ms (5000)"},
		{"outbox", "outbox:\n  bytes: 1000\n", "less than notification.max_payload_bytes"},
		{"public address", "control:\n  listen: 0.0.0.0:1\n", "c.yaml:2:3: control.listen: \"0.0.0.0:1\" is not a loopback address: without mutual TLS"},
		{"no port", "control:\n  listen: 127.0.0.1\n", "must be host:port"},
		{"advertise port 0", "control:\n  advertise: a:0\n", "the port must be 1 to 65535, not 0"},
		{"static without type", "registry:\n  static: {a: \"b:1\"}\n", "registry.type is p2p"},
		{"static without names", "registry:\n  type: static\n", "is empty, but registry.type is static"},
		{"static address", "registry:\n  type: static\n  static:\n    a: b\n", "c.yaml:4:5: registry.static.a: must be host:port"},
		{"security", "security:\n  ca: x\n", "c.yaml:2:3: security.cert: is missing"},
		{"security and insecure", "security:\n  ca: x\n  cert: y\n  key: z\n  insecure: true\n", "c.yaml:5:3: security.insecure: contradicts security.ca"},
		{"allow alone", "security:\n  allow: [a]\n", "c.yaml:2:3: security.allow: admits nobody without"},
		{"allow nobody", "security:\n  ca: x\n  cert: y\n  key: z\n  allow: [\"\"]\n", "security.allow[0]: must be 1 to 256 bytes"},
		{"unspecified without advertise", "control:\n  listen: 0.0.0.0:1\nsecurity:\n  insecure: true\n", "c.yaml:2:3: control.advertise: is not set"},
		{"admin without TLS", "admin:\n  http: 0.0.0.0:1\nsecurity:\n  ca: x\n  cert: y\n  key: z\n", "c.yaml:2:3: admin.http: \"0.0.0.0:1\" is not a loopback address, and it has no TLS"},
		{"transport's keys", "transports:\n  - name: tcp\n    keys: maybe\n", "c.yaml:3:11: transports[0].keys: must be true or false"},
		{"transports", "transports: tcp\n", "c.yaml:1:13: transports: must be a list, not a string"},
		{"transport without name", "transports:\n  - plugin: x\n", "transports[0].name: must be 1 to 32 of [a-z0-9-]"},
		{"transport's name", "transports:\n  - name: TCP\n", "c.yaml:2:5: transports[0].name: must be 1 to 32 of [a-z0-9-], not \"TCP\""},
		{"transport twice", "transports:\n  - name: tcp\n  - name: tcp\n", "c.yaml:3:5: transports[1].name: \"tcp\" is already transports[0]"},
		{"transport's key", "transports:\n  - name: tcp\n    plugn: x\n", "c.yaml:3:5: transports[0].plugn: unknown key; did you mean plugin?"},
		{"checksum", "transports:\n  - name: tcp\n    sha256: abc\n", "c.yaml:3:5: transports[0].sha256: must be 64 hexadecimal digits"},
		{"settings", "transports:\n  - name: tcp\n    config: [1]\n", "must be a mapping, not a list"},
		{"settings, infinite", "transports:\n  - name: tcp\n    config: {a: .inf}\n", "transports[0].config.a: a fraction is not supported"},
		{"settings, duplicate", "transports:\n  - name: tcp\n    config:\n      a: 1\n      a: 2\n", "c.yaml:5:7: "},
		{"variable", "transports:\n  - name: tcp\n    env: {\"A=B\": x}\n", "cannot be an environment variable"},
		{"none", "notification: {rpc_fallback: false}\ntransports: []\n", "nothing could be sent"},
		{"deep", strings.Repeat("[", 1000), "nested deeper than 100 levels"},
		{"long", strings.Repeat("#\n", maxConfigBytes/2+1), "more than 262144 bytes"},
		{"long line", strings.Repeat("#", maxConfigLine+1), "a line has more than 8192 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseConfig([]byte(tt.file), "c.yaml")
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got  %v\nwant %s", err, tt.want)
			}
			if !errors.Is(err, sdk.InvalidArgument) && !errors.Is(err, sdk.Unsupported) {
				t.Errorf("the code is %v", sdk.CodeOf(err))
			}
		})
	}
}

func TestAllFaultsAreReported(t *testing.T) {
	_, err := ParseConfig([]byte("notification:\n  proto: x\nnode:\n  nam: a\n"), "c.yaml")
	var es ConfigErrors
	if !errors.As(err, &es) || len(es) != 2 || es[0].Line != 2 || es[1].Line != 4 {
		t.Errorf("got %v", err)
	}
	if err != nil && strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("not one line each: %q", err)
	}
	_, err = ParseConfig([]byte("a: 1\n"+strings.Repeat("b", 3)+": 1\n"+many(100)), "c.yaml")
	if !errors.As(err, &es) || len(es) != maxConfigErrors {
		t.Errorf("%d faults", len(es))
	}
}

func many(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString("k" + strings.Repeat("x", i+1) + ": 1\n")
	}
	return b.String()
}

func TestEnvironment(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	if err := os.WriteFile(file, []byte("notification:\n  proto: 1\n  slot_wait_ms: 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := ReadConfig(file, []string{
		"HAWSER_NOTIFICATION_PROTO=0", "HAWSER_PEER_HEALTH_ENABLE=false", "HAWSER_NODE_NAME=a=b",
		"HAWSER_REGISTRY_TYPE=static", "HAWSER_REGISTRY_STATIC=a=127.0.0.1:1, b=127.0.0.1:2",
		"HAWSER_CONFIG=x", "HAWSER_PLUGIN_PATH=y", "HAWSER_CUDA_SIM=z", "HAWSER_TEST_X=1", "PATH=z", "",
		"HAWSER_SERVICE_HOST=1", "HAWSER_STORE_PORT_80_TCP_ADDR=1", "HAWSER_PORT=tcp://1", "HAWSER_X_SERVICE_PORT_HTTP=1",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Node:         NodeConfig{Name: "a=b"},
		Notification: NotificationConfig{Proto: new(0), SlotWaitMS: 5},
		PeerHealth:   PeerHealthConfig{Enable: new(false)},
		Registry:     RegistryConfig{Type: "static", Static: map[string]string{"a": "127.0.0.1:1", "b": "127.0.0.1:2"}},
	}
	if !reflect.DeepEqual(l.Config, want) {
		t.Errorf("got  %+v\nwant %+v", l.Config, want)
	}
	origins := map[string]string{}
	for _, s := range l.Settings() {
		origins[s.Key] = s.Origin
	}
	for key, want := range map[string]string{
		"notification.proto": "HAWSER_NOTIFICATION_PROTO", "notification.slot_wait_ms": file + ":3",
		"notification.deadline_ms": "default", "transports[0].name": "default",
	} {
		if origins[key] != want {
			t.Errorf("%s comes from %q, want %q", key, origins[key], want)
		}
	}

	for variable, want := range map[string]string{
		"HAWSER_NOTIFICATION_PORTO=1":                      "HAWSER_NOTIFICATION_PORTO: overrides no key; did you mean HAWSER_NOTIFICATION_PROTO?",
		"HAWSER_NOTIFICATION_PROTO=x":                      "HAWSER_NOTIFICATION_PROTO: notification.proto: must be a whole number, 0 to 2, not \"x\"",
		"HAWSER_NOTIFICATION_DEADLINE_MS=0":                "must be 1 to 600000, not 0",
		"HAWSER_RECEIVE_FRAMES=" + strings.Repeat("9", 20): "must be a whole number, ",
		"HAWSER_NOTIFICATION_PROTO=3":                      "must be 0 to 2, not 3",
		"HAWSER_NOTIFICATION_PROTO=":                       "must be a whole number",
		"HAWSER_PEER_HEALTH_ENABLE=yes":                    "must be true or false, not \"yes\"",
		"HAWSER_NOTIFICATION_DEADLINE_MS=1":                "HAWSER_NOTIFICATION_DEADLINE_MS: notification.deadline_ms: is 1, less than",
		"HAWSER_TRANSPORTS=tcp":                            "write it in the file",
		"HAWSER_REGISTRY_STATIC=a":                         "must be name=value",
		"HAWSER_REGISTRY_TYPE=etcd":                        "must be p2p or static",
		"HAWSER_SECURITY_ALLOW=a,b":                        "HAWSER_SECURITY_ALLOW: security.allow: admits nobody",
		"HAWSER_WHATEVER=1":                                "HAWSER_WHATEVER: overrides no key; what a plugin is to find in its environment stands in its transport's env",
	} {
		if _, err := ReadConfig("", []string{variable}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", variable, err, want)
		}
	}
	t.Setenv("HAWSER_NODE_NAME", "from-env")
	if c, err := LoadConfig(file); err != nil || c.Node.Name != "from-env" {
		t.Errorf("got %v, %v", c.Node.Name, err)
	}
	if _, err := LoadConfig(file + ".missing"); !errors.Is(err, os.ErrNotExist) || !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("a missing file: %v", err)
	}
}

const sampleConfig = `
node: {name: n}
notification:
  proto: 1
  rpc_fallback: false
rpc: {request_timeout_ms: -1, probe_timeout_ms: 7}
registry: {type: static, static: {a: "127.0.0.1:1"}}
transports:
  - {name: tcp, config: {listen: "127.0.0.1:0"}, env: {SECRET: hunter2}}
`

// What `config show` prints is a file with the same effect, secrets apart.
func TestShow(t *testing.T) {
	l, err := readConfig([]byte(sampleConfig), "c.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	shown := string(l.Show())
	for _, want := range []string{`  proto: 1  # c.yaml:4`, `  slot_wait_ms: 1000  # default`,
		`  - name: "tcp"  # c.yaml:9`, `    config: {"listen":"127.0.0.1:0"}`} {
		if !strings.Contains(shown, want) {
			t.Errorf("%q is not in\n%s", want, shown)
		}
	}
	if strings.Contains(shown, "hunter2") {
		t.Error("a secret is shown")
	}
	shown = strings.ReplaceAll(shown, "(hidden)", "hunter2")
	shown = strings.ReplaceAll(shown, "    sha256: \"\"  # default\n", "")
	shown = strings.ReplaceAll(shown, "registry.static: {}", "")
	c, err := ParseConfig([]byte(shown), "shown")
	if err != nil {
		t.Fatalf("%v\n%s", err, shown)
	}
	again, err := c.Effective()
	if err != nil {
		t.Fatal(err)
	}
	want, err := l.Config.Effective()
	if err != nil {
		t.Fatal(err)
	}
	want.Registry.Static, again.Registry.Static = nil, nil
	want.Security.Allow, again.Security.Allow = nil, nil
	if !reflect.DeepEqual(again, want) {
		t.Errorf("got  %+v\nwant %+v", again, want)
	}
}

func compileConfigSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(ConfigSchema())))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource("config.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := compiler.Compile("config.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchema(t *testing.T) {
	s := compileConfigSchema(t)
	for _, tt := range []struct {
		file string
		ok   bool
	}{
		{sampleConfig, true},
		{"node:\n", true},
		{"node: {nam: x}", false},
		{"nod: {}", false},
		{"notification: {proto: 3}", false},
		{"rpc: {request_timeout_ms: 0}", false},
		{"rpc: {request_timeout_ms: -1}", true},
		{"transports: [{plugin: x}]", false},
		{"transports: [{name: X}]", false},
		{"registry: {type: other}", false},
	} {
		raw, err := yaml.YAMLToJSON([]byte(tt.file))
		if err != nil {
			t.Fatal(err)
		}
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(string(raw)))
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Validate(v); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.file, err)
		}
		// The schema and the parser agree.
		if _, err := ParseConfig([]byte(tt.file), "x"); (err == nil) != tt.ok {
			t.Errorf("%q: the parser says %v", tt.file, err)
		}
	}
}

func TestValidateNamesGoValues(t *testing.T) {
	for _, tt := range []struct {
		c    Config
		want string
	}{
		{Config{Notification: NotificationConfig{Proto: new(3)}}, "notification.proto: must be 0 to 2, not 3"},
		{Config{Outbox: OutboxConfig{Bytes: -1}}, "outbox.bytes: must be 1 to"},
		{Config{Transports: []TransportConfig{{Name: "a", Config: json.RawMessage("[]")}}}, "transports[0].config: must be a JSON object"},
		{Config{Node: NodeConfig{Name: "a\nb"}}, "node.name: must be"},
		{Config{Transports: make([]TransportConfig, 40)}, "transports: has 41 entries, the limit is 32"},
	} {
		if _, err := tt.c.Effective(); err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
	if err := (Config{}).Validate(); err == nil {
		t.Error("an unfilled configuration is said to be valid")
	}
}

func FuzzParseConfig(f *testing.F) {
	for _, s := range []string{sampleConfig, "", "node: &a {name: *a}", "<<: {}", "? {a: b}\n: c", "- - -", "a: |\n  b",
		"!!int x: y", "transports: [{name: tcp, config: {a: .nan}}]", "notification: {proto: 0x2}", "a: b: c", "---\n...\n---",
		"\"\": {}", "node:\n  name: >-\n", "[", "{", "'", "\"\\", "%YAML 1.2\n---\n"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ParseConfig(data, "fuzz")
		if err != nil {
			if sdk.CodeOf(err) == 0 {
				t.Errorf("no code: %v", err)
			}
			return
		}
		if _, err := c.Effective(); err != nil {
			t.Errorf("accepted, but not valid: %v", err)
		}
	})
}
