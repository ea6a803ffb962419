package engine

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// secureFiles writes keys and returns the configuration that names them.
func secureFiles(t *testing.T, k sdk.Keys) SecurityConfig {
	t.Helper()
	var c SecurityConfig
	c.CA, c.Cert, c.Key = sdktest.WriteKeys(t, t.TempDir(), k)
	return c
}

func TestSecurityFilesAreChecked(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	good, other := ca.Issue("node", nil), sdktest.NewAuthority(t, "other").Issue("node", nil)
	for _, c := range []struct {
		name, key, want string
		keys            sdk.Keys
		change          func(SecurityConfig) error
	}{
		{name: "fine", keys: good},
		{name: "missing", keys: good, key: "security.cert", want: "no such file",
			change: func(c SecurityConfig) error { return os.Remove(c.Cert) }},
		{name: "open to all", keys: good, key: "security.key", want: "its permissions are 0644, too open for a key: chmod 600",
			change: func(c SecurityConfig) error { return os.Chmod(c.Key, 0o644) }},
		{name: "open to the group", keys: good,
			change: func(c SecurityConfig) error { return os.Chmod(c.Key, 0o640) }},
		{name: "another's key", keys: sdk.Keys{CA: good.CA, Cert: good.Cert, Key: other.Key},
			key: "security.key", want: "key.pem: does not match the certificate"},
		{name: "another's authority", keys: sdk.Keys{CA: other.CA, Cert: good.Cert, Key: good.Key},
			key: "security.cert", want: `cert.pem: the certificate of "node" is not signed by the configured CA`},
		{name: "expired", keys: ca.Issue("node", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }),
			key: "security.cert", want: `cert.pem: the certificate of "node" expired at 20`},
		{name: "not yet", keys: ca.Issue("node", func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }),
			key: "security.cert", want: "is valid from"},
		{name: "for servers only", keys: ca.Issue("node", func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }),
			key: "security.cert", want: "is not for both serverAuth and clientAuth"},
		{name: "no PEM", keys: sdk.Keys{CA: []byte("x"), Cert: good.Cert, Key: good.Key},
			key: "security.ca", want: "ca.pem: holds no certificate in PEM"},
		{name: "no authority's", keys: sdk.Keys{CA: good.Cert, Cert: good.Cert, Key: good.Key},
			key: "security.ca", want: "is not the certificate of an authority"},
		{name: "a key among the authority's", keys: sdk.Keys{CA: good.Key, Cert: good.Cert, Key: good.Key},
			key: "security.ca", want: "holds a PRIVATE KEY"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := Config{Security: secureFiles(t, c.keys)}
			if c.change != nil {
				if err := c.change(cfg.Security); err != nil {
					t.Fatal(err)
				}
			}
			err := cfg.CheckFiles()
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var es ConfigErrors
			if !errors.As(err, &es) || es[0].Key != c.key || !strings.Contains(err.Error(), c.want) || !errors.Is(err, sdk.InvalidArgument) {
				t.Fatalf("got %v, want %s: %s", err, c.key, c.want)
			}
			if strings.Contains(err.Error(), "PRIVATE KEY-----") {
				t.Error("the error shows the key")
			}
			if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v", err)
			}
			file := fmt.Sprintf("security:\n  ca: %s\n  cert: %s\n  key: %s\n", cfg.Security.CA, cfg.Security.Cert, cfg.Security.Key)
			l, err := readConfig([]byte(file), "c.yaml", nil)
			if err != nil {
				t.Fatal(err)
			}
			line := map[string]string{"security.ca": "c.yaml:2:3", "security.cert": "c.yaml:3:3", "security.key": "c.yaml:4:3"}[c.key]
			if err := l.CheckFiles(); err == nil || !strings.HasPrefix(err.Error(), line+": "+c.key+": ") {
				t.Errorf("got %v, want it at %s", err, line)
			}
		})
	}
}

// keyed is a transport that asks for keys and notes what it is given.
type keyed struct {
	sdk.Transport
	sdk.Notifier
	quiet bool // does not ask
	mu    sync.Mutex
	given []*sdk.Keys
}

func (k *keyed) Describe() sdk.Description {
	d := k.Transport.Describe()
	d.Features = []sdk.Feature{sdk.FeatureNotify}
	if !k.quiet {
		d.Features = append(d.Features, sdk.FeatureKeys)
	}
	return d
}

func (k *keyed) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	k.note(cfg.Keys)
	return k.Transport.Configure(ctx, cfg)
}

func (k *keyed) SetKeys(_ context.Context, keys sdk.Keys) error {
	k.note(&keys)
	return nil
}

func (k *keyed) note(keys *sdk.Keys) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.given = append(k.given, keys)
}

func (k *keyed) last() (*sdk.Keys, int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.given[len(k.given)-1], len(k.given)
}

func keyedTransport(name string, quiet bool) (*keyed, func() sdk.Transport) {
	tr := sdktest.NewFabric(sdktest.FabricOptions{Name: name}).New("x")
	k := &keyed{Transport: tr, Notifier: tr.(sdk.Notifier), quiet: quiet}
	return k, func() sdk.Transport { return k }
}

// lines is a log that a test reads.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), text)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

func (l *lines) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func openFor(t *testing.T, cfg Config, log *lines) *Engine {
	t.Helper()
	e, err := Open(t.Context(), cfg, WithLogger(log.logger()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// Who asks for keys and may have them gets them, and nobody else; changed
// files reach the same ones, and files that are no good reach nobody.
func TestKeysReachTransports(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	cfg := Config{
		Control:      ControlConfig{Listen: "0.0.0.0:0", Advertise: "127.0.0.1:7400"},
		Notification: NotificationConfig{RPCFallback: new(false)},
		Security:     secureFiles(t, ca.Issue("first", nil)),
	}
	cfg.Security.Allow = []string{"x"}
	built, mayHave, mayNot, quiet := &keyed{}, &keyed{}, &keyed{}, &keyed{}
	for _, c := range []struct {
		name  string
		k     **keyed
		quiet bool
		keys  *bool
	}{{"tcp", &built, false, nil}, {"third", &mayHave, false, new(true)}, {"fourth", &mayNot, false, nil}, {"fifth", &quiet, true, new(true)}} {
		k, fresh := keyedTransport(c.name, c.quiet)
		*c.k = k
		cfg.Transports = append(cfg.Transports, TransportConfig{Name: c.name, InProcess: fresh, Keys: c.keys})
	}
	log := &lines{}
	e := openFor(t, cfg, log)
	for name, k := range map[string]*keyed{"tcp": built, "third": mayHave} {
		if got, n := k.last(); got == nil || n != 1 || !slices.Equal(got.Allow, []string{"x"}) {
			t.Errorf("%s got %v", name, got)
		}
	}
	for name, k := range map[string]*keyed{"fourth": mayNot, "fifth": quiet} {
		if got, n := k.last(); got != nil || n != 1 {
			t.Errorf("%s got %v", name, got)
		}
	}
	if log.has(`not secured" transport=tcp`) || log.count(`this transport does not use it: what it carries is not secured" transport=fifth`) != 1 {
		t.Error("that a transport uses no TLS is not said, or is said of another")
	}
	if !log.has("transports[].keys: true lets it") {
		t.Error("that a transport goes without keys is not said")
	}

	// Half of a change is no change.
	second := ca.Issue("second", nil)
	old, err := os.ReadFile(cfg.Security.Key)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(cfg.Security.Cert)
	sdktest.WriteKeys(t, dir, sdk.Keys{CA: second.CA, Cert: second.Cert, Key: old})
	if err := e.security.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "does not match") {
		t.Errorf("half a change: %v", err)
	}
	if _, n := built.last(); n != 1 {
		t.Error("half a change reached a transport")
	}
	sdktest.WriteKeys(t, dir, second)
	// The engine looks by itself.
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if got, n := mayHave.last(); n == 2 && bytes.Equal(got.Cert, second.Cert) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the changed keys did not reach the transport")
		}
	}
	if names := e.security.ring.Names(); !slices.Equal(names, []string{"second"}) {
		t.Errorf("the control plane has %q", names)
	}
	for name, k := range map[string]*keyed{"fourth": mayNot, "fifth": quiet} {
		if _, n := k.last(); n != 1 {
			t.Errorf("%s was given the changed keys", name)
		}
	}
	if log.has("PRIVATE KEY") {
		t.Error("the log shows the key")
	}
}

func TestKeysAreHidden(t *testing.T) {
	k := sdktest.NewAuthority(t, "ca").Issue("a", nil)
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "keys", k, "pointer", &k, "config", sdk.Config{Keys: &k})
	slog.New(slog.NewTextHandler(&b, nil)).Info("x", "keys", k, "pointer", &k, "config", sdk.Config{Keys: &k})
	_, _ = fmt.Fprintf(&b, "%v %+v %#v %s %x %v %+v", k, k, k, k, k, &k, sdk.Config{Keys: &k})
	for _, secret := range []string{"PRIVATE", fmt.Sprintf("%x", k.Key[30:60]), fmt.Sprintf("%d", k.Key[30:60])} {
		if strings.Contains(b.String(), secret) {
			t.Errorf("the key is shown: %s", b.String())
		}
	}
}

// Other than loopback addresses are for those who say how.
func TestNonLoopback(t *testing.T) {
	public := func() Config {
		_, fresh := keyedTransport("tcp", true)
		return Config{
			Control:      ControlConfig{Listen: "0.0.0.0:0", Advertise: "127.0.0.1:7400"},
			Notification: NotificationConfig{RPCFallback: new(false)},
			Transports:   []TransportConfig{{Name: "tcp", InProcess: fresh}},
		}
	}
	if _, err := Open(t.Context(), public()); err == nil || !strings.Contains(err.Error(), "security.ca") {
		t.Errorf("got %v", err)
	}
	insecure, log := public(), &lines{}
	insecure.Security.Insecure = true
	openFor(t, insecure, log)
	if !log.has("level=WARN msg=\"INSECURE: ") {
		t.Error("that it is insecure is not said")
	}
	secure := public()
	secure.Security = secureFiles(t, sdktest.NewAuthority(t, "ca").Issue("a", nil))
	openFor(t, secure, &lines{})
}
