package pluginhost

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

func TestCheckSettings(t *testing.T) {
	schema := `{"type":"object","additionalProperties":false,"required":["listen"],"properties":{
		"listen":{"type":"string"},"endpoint":{"type":"object","properties":{"mtu":{"type":"integer","minimum":256}}}}}`
	for _, c := range []struct{ name, schema, settings, want string }{
		{"valid", schema, `{"listen":"a","endpoint":{"mtu":256}}`, ""},
		{"too small", schema, `{"listen":"a","endpoint":{"mtu":7}}`, "config.endpoint.mtu: minimum: got 7, want 256"},
		{"wrong type", schema, `{"listen":1}`, "config.listen: got number, want string"},
		{"missing", schema, ``, "config: missing property 'listen'"},
		{"unknown", schema, `{"listen":"a","lisen":"b"}`, "'lisen'"},
		{"two faults", schema, `{"listen":1,"endpoint":{"mtu":7}}`, "; "},
		{"no settings, none given", "", ``, ""},
		{"no settings, one given", "", `{"a":1}`, "config.a: the transport takes no settings"},
		{"no object", "", `[]`, "must be an object"},
		{"no JSON", "", `{`, "not JSON"},
		{"schema is no JSON", `{`, `{}`, "cannot be used"},
		{"schema refers to a file", `{"$ref":"file:///etc/passwd"}`, `{}`, "must not refer to"},
		{"schema refers to the net", `{"$ref":"http://127.0.0.1/x"}`, `{}`, "must not refer to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := CheckSettings("rdma", json.RawMessage(c.schema), json.RawMessage(c.settings))
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errors.Is(err, sdk.InvalidArgument) || !strings.HasPrefix(err.Error(), "transport rdma: ") || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestListeners(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, c := range []struct{ name, settings, want string }{
		{"default", `{}`, ""},
		{"empty", `{"listen":""}`, ""},
		{"named", `{"listen":"localhost:0"}`, ""},
		{"in use", `{"listen":"` + taken.Addr().String() + `"}`, "transport tcp: config.listen " + taken.Addr().String() + ": the address is in use"},
		{"everywhere", `{"listen":"0.0.0.0:0"}`, "only loopback"},
		{"everywhere, unsaid", `{"listen":":0"}`, "only loopback"},
		{"by name", `{"listen":"example.com:1"}`, "only loopback"},
		{"no port", `{"listen":"127.0.0.1"}`, `is not "host:port"`},
		{"no string", `{"listen":7}`, "must be a string"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := listeners{transport: "tcp", check: LoopbackOnly, open: map[string]listening{}}
			defer l.close()
			specs := []sdk.ListenerSpec{{Name: "main", Key: "listen", Default: "127.0.0.1:0"}}
			lent, err := l.lend(specs, json.RawMessage(c.settings))
			defer closeAll(lent)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) || lent != nil {
					t.Fatalf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			again, err := l.lend(specs, json.RawMessage(c.settings))
			if err != nil {
				t.Fatal(err)
			}
			defer closeAll(again)
			if a, b := lent["main"].Addr().String(), again["main"].Addr().String(); a != b {
				t.Fatalf("lent %s, then %s", a, b)
			}
		})
	}
}

func TestLines(t *testing.T) {
	var buf bytes.Buffer
	now := time.Now()
	l := newLines(slog.New(slog.NewJSONHandler(&buf, nil)).With("transport", "t"))
	l.clock = func() time.Time { return now }
	take := func() []map[string]any {
		var all []map[string]any
		d := json.NewDecoder(&buf)
		for d.More() {
			var m map[string]any
			if err := d.Decode(&m); err != nil {
				t.Fatal(err)
			}
			all = append(all, m)
		}
		return all
	}
	for _, c := range []struct {
		name, in   string
		level, msg string
	}{
		{"plain", "hello\n", "INFO", "hello"},
		{"a record", `{"time":"x","level":"ERROR","msg":"bad","n":1,"transport":"forged","s":"a\u001bb"}` + "\n", "ERROR", "bad"},
		{"a record's level with an offset", `{"level":"WARN+1","msg":"m"}` + "\n", "WARN+1", "m"},
		{"an unknown level", `{"level":"LOUD","msg":"m"}` + "\n", "INFO", `{"level":"LOUD","msg":"m"}`},
		{"other JSON", `{"@message":1,"@level":"info"}` + "\n", "INFO", `{"@message":1,"@level":"info"}`},
		{"wrong types", `{"level":1,"msg":[]}` + "\n", "INFO", `{"level":1,"msg":[]}`},
		{"bytes", "\x00\xfe\t\x1b[0m\u202e\n", "INFO", `\x00\xfe` + "\t" + `\x1b[0m\xe2\x80\xae`},
		{"long", strings.Repeat("a", maxLine+5) + "\n", "INFO", strings.Repeat("a", maxLine) + " ... (5 more bytes)"},
		{"as long as can be", strings.Repeat("a", maxLine) + "\n", "INFO", strings.Repeat("a", maxLine)},
	} {
		for _, piece := range []int{1, 7, 1 << 20} { // however it is cut
			for rest := []byte(c.in); len(rest) > 0; {
				n := min(piece, len(rest))
				_, _ = l.Write(rest[:n])
				rest = rest[n:]
			}
			got := take()
			if len(got) != 1 || got[0]["msg"] != c.msg || got[0]["level"] != c.level || got[0]["transport"] != "t" {
				t.Fatalf("%s in pieces of %d: %v", c.name, piece, got)
			}
			if c.name == "a record" && (got[0]["n"] != "1" || got[0]["s"] != `a\x1bb`) {
				t.Fatalf("attributes: %v", got)
			}
		}
	}
	_, _ = l.Write([]byte("\n\nwithout an end"))
	l.finish()
	if got := take(); len(got) != 1 || got[0]["msg"] != "without an end" {
		t.Fatal(got)
	}
}

func TestLinesAreBounded(t *testing.T) {
	var buf bytes.Buffer
	now := time.Now()
	l := newLines(slog.New(slog.NewJSONHandler(&buf, nil)))
	l.clock = func() time.Time { return now }
	for range lineBurst + 500 {
		_, _ = l.Write([]byte("x\n"))
	}
	if n := bytes.Count(buf.Bytes(), []byte("\n")); n != lineBurst {
		t.Fatalf("%d lines at once", n)
	}
	now = now.Add(time.Second)
	for range 500 {
		_, _ = l.Write([]byte("y\n"))
	}
	if n := bytes.Count(buf.Bytes(), []byte("\n")); n != lineBurst+linesPerSecond+1 {
		t.Fatalf("%d lines after a second", n)
	}
	if !strings.Contains(buf.String(), `"lines":500`) {
		t.Fatal("what was left out is not counted")
	}
	if tail := l.tail(); len(tail) != keptLines || tail[0] != "y" {
		t.Fatalf("last lines %q", tail)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte(`{"level":"INFO","msg":"m","a":{"b":[1]}}`+"\n"), 3)
	f.Add([]byte("\xff\x00\n\n"), 1)
	f.Fuzz(func(t *testing.T, in []byte, piece int) {
		var buf bytes.Buffer
		l := newLines(slog.New(slog.NewTextHandler(&buf, nil)))
		piece = max(1, piece%64)
		for rest := in; len(rest) > 0; {
			n := min(piece, len(rest))
			_, _ = l.Write(rest[:n])
			rest = rest[n:]
		}
		l.finish()
		if len(l.line) > maxLine || len(l.tail()) > keptLines {
			t.Fatal("unbounded")
		}
	})
}

func TestFind(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	_ = os.Mkdir(filepath.Join(a, "hawser-dir"), 0o700)
	_ = os.WriteFile(filepath.Join(a, "hawser-plain"), nil, 0o600)
	_ = os.WriteFile(filepath.Join(b, "hawser-tcp"), nil, 0o700)
	got, err := Find("tcp", []string{a, b})
	if err != nil || got != filepath.Join(b, "hawser-tcp") {
		t.Fatal(got, err)
	}
	for _, c := range []struct {
		name string
		want []string
	}{
		{"nothing", []string{"plugin nothing was not found; looked at", filepath.Join(a, "hawser-nothing") + " (not there)", filepath.Join(b, "hawser-nothing"), "plugins.dir", "HAWSER_PLUGIN_PATH"}},
		{"dir", []string{"(a directory)"}},
		{"plain", []string{"plugin plain is there and cannot be used", "(not executable: chmod +x it)"}},
		{"../tcp", []string{"no name of a plugin"}},
	} {
		_, err := Find(c.name, []string{a, b})
		if got := errors.Is(err, ErrNotFound); got != (c.name == "nothing") {
			t.Errorf("%s: not found is %v: %v", c.name, got, err)
		}
		for _, want := range c.want {
			if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", c.name, err, want)
			}
		}
	}
	if _, err := Find("tcp", nil); err == nil {
		t.Error("found in no directory")
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	file, bin := filepath.Join(dir, "plugins.lock"), filepath.Join(dir, "hawser-tcp")
	if err := os.WriteFile(bin, []byte("one"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := LoadLock(file)
	if err != nil || len(l.Names()) != 0 {
		t.Fatal(l, err)
	}
	if err := l.Verify("tcp", bin); err == nil || !strings.Contains(err.Error(), "hawser plugin verify --update") {
		t.Fatal(err)
	}
	l, err = ParseLock("x", []byte("# approved by me\n\n"+strings.Repeat("AB", 32)+"  rdma\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bool{true, false} {
		if changed, err := l.Update("tcp", bin); err != nil || changed != want {
			t.Fatal(changed, err)
		}
	}
	if err := errors.Join(l.Verify("tcp", bin), l.Save(file)); err != nil {
		t.Fatal(err)
	}
	again, err := LoadLock(file)
	if err != nil || !bytes.Equal(again.Bytes(), l.Bytes()) || !bytes.HasPrefix(l.Bytes(), []byte("# approved by me\n\n")) {
		t.Fatalf("%v: saved\n%s, loaded\n%s", err, l.Bytes(), again.Bytes())
	}
	if !slices.Equal(again.Names(), []string{"rdma", "tcp"}) || again.Sum("rdma") != strings.Repeat("ab", 32) {
		t.Fatal(again)
	}
	if err := os.WriteFile(bin, []byte("two"), 0o700); err != nil {
		t.Fatal(err)
	}
	err = again.Verify("tcp", bin)
	if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), again.Sum("tcp")) {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Fatal("Save left something behind")
	}
}

func TestLockFaults(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	for in, want := range map[string]string{
		"# ok\nabc":                              "plugins.lock:2: expected a SHA-256",
		"xyz  tcp":                               "plugins.lock:1: ",
		sum + "  Bad Name":                       "no name of a plugin",
		sum + " tcp":                             "two spaces",
		sum + "  tcp\n" + sum + "  tcp":          "plugins.lock:2: tcp is listed twice",
		sum + "  a\n" + strings.Repeat("x", 1e5): "plugins.lock:2: ",
	} {
		if _, err := ParseLock("plugins.lock", []byte(in)); !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", in, err, want)
		}
	}
}

func FuzzParseLock(f *testing.F) {
	f.Add([]byte("# c\n" + strings.Repeat("ab", 32) + "  tcp\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, err := ParseLock("f", in)
		if err != nil {
			return
		}
		again, err := ParseLock("f", l.Bytes())
		if err != nil || !slices.Equal(again.Names(), l.Names()) {
			t.Fatalf("not the same when read again: %v", err)
		}
	})
}
