package control

import (
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func ring(t *testing.T, k sdk.Keys, allow ...string) *mtls.Keyring {
	t.Helper()
	k.Allow = allow
	r, err := mtls.New(k)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// serveTLS runs a server; nil keys mean none.
func serveTLS(t *testing.T, r *mtls.Keyring) string {
	t.Helper()
	s := NewGRPC(Options{Keys: r})
	t.Cleanup(func() { closeCarrier(t, s) })
	address, err := s.Listen(&stub{})
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func TestTLSAdmitsAndRefuses(t *testing.T) {
	ca, other := sdktest.NewAuthority(t, "ca"), sdktest.NewAuthority(t, "other")
	alice, bob, foreign := ca.Issue("alice", nil), ca.Issue("bob", nil), other.Issue("bob", nil)
	for _, c := range []struct {
		name           string
		client, server *mtls.Keyring
		want           string // of the error; nothing is success
	}{
		{"both sign and check", ring(t, alice), ring(t, bob), ""},
		{"the allowed ones", ring(t, alice, "bob"), ring(t, bob, "x", "Alice"), ""},
		{"client's authority is another", ring(t, foreign), ring(t, bob), "not signed by the configured CA"},
		{"server's name is not allowed", ring(t, alice, "carol"), ring(t, bob), `"bob" bears no name that security.allow lists`},
		{"client's name is not allowed", ring(t, alice), ring(t, bob, "carol"), "the peer refused this node's certificate"},
		{"client without TLS", nil, ring(t, bob), "the peer demands TLS"},
		{"server without TLS", ring(t, alice), nil, "the peer does not use TLS"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := dial(t, serveTLS(t, c.server), Options{Keys: c.client})
			for range 2 { // a refusal is no less one the second time
				start := time.Now()
				err := aProbe(within(t, 10*time.Second), client)
				if c.want == "" {
					if err != nil {
						t.Fatal(err)
					}
					continue
				}
				if !errors.Is(err, sdk.Refused) || !Answered(err) || Silent(err) || Gone(err) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v, want %s", err, c.want)
				}
				if took := time.Since(start); took > 5*time.Second {
					t.Errorf("it took %v", took)
				}
			}
		})
	}
}

// heard is a log that a test reads.
type heard struct {
	mu sync.Mutex
	b  strings.Builder
}

func (h *heard) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.Write(p)
}

func (h *heard) text() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.b.String()
}

// Whatever keeps two nodes apart, both are told, and told what to do.
func TestTLSFailuresAreSaidOnBothSides(t *testing.T) {
	ca, other := sdktest.NewAuthority(t, "ca"), sdktest.NewAuthority(t, "other")
	var brief *mtls.Keyring
	var end time.Time
	for life, err := 2*time.Second, error(nil); brief == nil; life *= 2 {
		if life > time.Minute {
			t.Fatalf("no certificate lives long enough to be read: %v", err)
		}
		end = time.Now().Add(life).Truncate(time.Second)
		brief, err = mtls.New(ca.Issue("brief", func(c *x509.Certificate) { c.NotAfter = end }))
	}
	alice, bob := ring(t, ca.Issue("alice", nil)), ring(t, ca.Issue("bob", nil))
	time.Sleep(time.Until(end.Add(time.Second))) // certificates go by the clock of the wall
	const refused = "the peer refused this node's certificate"
	for _, c := range []struct {
		name           string
		client, server *mtls.Keyring
		atClient, log  string
	}{
		{"the client's has expired", brief, bob, refused, "expired at"},
		{"the server's has expired", alice, brief, ": renew it, or set the clock", refused},
		{"the client's authority is another", ring(t, other.Issue("alice", nil)), bob, "is not signed by the configured CA, but by \"ca\"", refused},
		{"the server's name is not allowed", ring(t, ca.Issue("alice", nil), "carol"), bob, "add one there, or leave the peer out", refused},
		{"the client's name is not allowed", alice, ring(t, ca.Issue("bob", nil), "carol"), refused, "bears no name that security.allow lists"},
		{"the client is without TLS", nil, bob, "configure security.ca, security.cert and security.key here too", "configure security.ca, security.cert and security.key there too"},
		{"the server is without TLS", alice, nil, "configure security.ca, security.cert and security.key there too", "configure security.ca, security.cert and security.key here too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			log := &heard{}
			s := NewGRPC(Options{Keys: c.server, Log: slog.New(slog.NewTextHandler(log, nil))})
			t.Cleanup(func() { closeCarrier(t, s) })
			address, err := s.Listen(&stub{})
			if err != nil {
				t.Fatal(err)
			}
			err = aProbe(testContext(t), dial(t, address, Options{Keys: c.client}))
			if !errors.Is(err, sdk.Refused) || !Answered(err) || !strings.Contains(err.Error(), c.atClient) {
				t.Errorf("the client: %v", err)
			}
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
				if text := log.text(); strings.Contains(text, "control connection refused") && strings.Contains(text, c.log) {
					break
				} else if time.Now().After(end) {
					t.Fatalf("the server's log: %s", text)
				}
			}
		})
	}
}

// A certificate that expires while the process runs is refused by its peers.
func TestTLSExpiresMeanwhile(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	// Longer where making it took so long that it has expired already.
	var end time.Time
	var r *mtls.Keyring
	for life, err := 2*time.Second, errors.New("none"); err != nil; life *= 2 {
		if life > time.Minute {
			t.Fatal(err)
		}
		end = time.Now().Add(life).Truncate(time.Second)
		r, err = mtls.New(ca.Issue("brief", func(c *x509.Certificate) { c.NotAfter = end }))
	}
	address := serveTLS(t, ring(t, ca.Issue("bob", nil)))
	time.Sleep(time.Until(end.Add(time.Second))) // TLS has no other clock
	if err := aProbe(testContext(t), dial(t, address, Options{Keys: r})); !errors.Is(err, sdk.Refused) || !Answered(err) {
		t.Errorf("got %v", err)
	}
	back := dial(t, serveTLS(t, r), Options{Keys: ring(t, ca.Issue("bob", nil))})
	if err := aProbe(testContext(t), back); !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("got %v", err)
	}
}

// New keys count from the next connection on.
func TestTLSKeysChange(t *testing.T) {
	ca, next := sdktest.NewAuthority(t, "ca"), sdktest.NewAuthority(t, "next")
	server, client := ring(t, ca.Issue("bob", nil)), ring(t, ca.Issue("alice", nil))
	address := serveTLS(t, server)
	old := dial(t, address, Options{Keys: client})
	if err := aProbe(testContext(t), old); err != nil {
		t.Fatal(err)
	}
	if err := server.Set(next.Issue("bob", nil)); err != nil {
		t.Fatal(err)
	}
	if err := aProbe(testContext(t), old); err != nil {
		t.Errorf("an existing connection: %v", err)
	}
	fresh := dial(t, address, Options{Keys: client})
	if err := aProbe(testContext(t), fresh); !errors.Is(err, sdk.Refused) {
		t.Errorf("a new one, with the old authority: %v", err)
	}
	if err := client.Set(next.Issue("alice", nil)); err != nil {
		t.Fatal(err)
	}
	if err := aProbe(testContext(t), fresh); err != nil {
		t.Errorf("a new one, with the new authority: %v", err)
	}
}

// A frozen peer is silent under TLS too, within the caller's time.
func TestTLSFrozenPeer(t *testing.T) {
	address, _ := mute(t, "")
	c := dial(t, address, Options{Keys: ring(t, sdktest.NewAuthority(t, "ca").Issue("alice", nil))})
	start := time.Now()
	if err := aProbe(within(t, 100*time.Millisecond), c); !Silent(err) || time.Since(start) > 5*time.Second {
		t.Errorf("got %v after %v", err, time.Since(start))
	}
	if err := aProbe(testContext(t), dial(t, closedPort(t), Options{Keys: ring(t, sdktest.NewAuthority(t, "ca").Issue("alice", nil))})); !Gone(err) {
		t.Errorf("nobody there: %v", err)
	}
}

func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test's own
	return l.Addr().String()
}

// Rubbish and silence cost the server nothing that others would notice.
func TestTLSRubbish(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	address := serveTLS(t, ring(t, ca.Issue("bob", nil)))
	for _, b := range []string{"", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\xff\xff", strings.Repeat("\x00", 4096)} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // the test's own
		if _, err := conn.Write([]byte(b)); err != nil {
			t.Fatal(err)
		}
	}
	if err := aProbe(testContext(t), dial(t, address, Options{Keys: ring(t, ca.Issue("alice", nil))})); err != nil {
		t.Error(err)
	}
}

func TestListenBindsAnythingUnderTLS(t *testing.T) {
	keys := ring(t, sdktest.NewAuthority(t, "ca").Issue("a", nil))
	for _, o := range []Options{{Keys: keys}, {Insecure: true}} {
		o.Listen = "0.0.0.0:0"
		c := NewGRPC(o)
		if _, err := c.Listen(&stub{}); err != nil {
			t.Error(err)
		}
		closeCarrier(t, c)
	}
	c := NewGRPC(Options{Keys: keys, Listen: "nonsense"})
	if _, err := c.Listen(&stub{}); !errors.Is(err, sdk.InvalidArgument) {
		t.Error(err)
	}
	closeCarrier(t, c)
}
