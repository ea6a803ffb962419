package mtls_test

import (
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// join makes a connection and returns both ends.
func join(t *testing.T) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if dialed, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if accepted, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []net.Conn{dialed, accepted} {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		t.Cleanup(func() { _ = c.Close() })
	}
	return dialed, accepted
}

func TestBothEndsSayWhoIsThere(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	a, b := ca.Issue("alice", nil), ca.Issue("bob", nil)
	ra, err := mtls.Ring(&a)
	if err != nil {
		t.Fatal(err)
	}
	rb, err := mtls.Ring(&b)
	if err != nil {
		t.Fatal(err)
	}
	x, y := join(t)
	client, server := mtls.Client(x, ra, "p", nil), mtls.Server(y, rb, "p", nil)
	go func() { _, _ = io.WriteString(client, "hello") }()
	got := make([]byte, 5)
	if _, err := io.ReadFull(server, got); err != nil || string(got) != "hello" {
		t.Fatalf("%q, %v", got, err)
	}
	if n := mtls.PeerNames(client); !slices.Equal(n, []string{"bob"}) {
		t.Errorf("the client sees %q", n)
	}
	if n := mtls.PeerNames(server); !slices.Equal(n, []string{"alice"}) {
		t.Errorf("the server sees %q", n)
	}
	if mtls.PeerNames(x) != nil || mtls.Under(client) != x || mtls.Under(server) != y {
		t.Error("what carries is not what was given")
	}
	_ = client.Close()
	if _, err := server.Read(got); err != io.EOF {
		t.Errorf("after Close the peer reads %v", err)
	}
}

func TestWithoutKeysNothingChanges(t *testing.T) {
	if r, err := mtls.Ring(nil); r != nil || err != nil {
		t.Fatal(r, err)
	}
	x, y := join(t)
	client, server := mtls.Client(x, nil, "p", nil), mtls.Server(y, nil, "p", nil)
	if server != y {
		t.Error("the accepting side is something else")
	}
	_, _ = io.WriteString(server, "hi")
	got := make([]byte, 2)
	if _, err := io.ReadFull(client, got); err != nil || string(got) != "hi" {
		t.Errorf("%q, %v", got, err)
	}
	var none *mtls.Keyring
	if err := none.Replace(sdk.Keys{}); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("keys for what has none: %v", err)
	}
}

// An error names the part at fault.
func TestFaultsNameThePart(t *testing.T) {
	good := sdktest.NewAuthority(t, "ca").Issue("alice", nil)
	other := sdktest.NewAuthority(t, "other").Issue("alice", nil)
	for part, k := range map[string]sdk.Keys{
		"ca":   {Cert: good.Cert, Key: good.Key},
		"cert": {CA: other.CA, Cert: good.Cert, Key: good.Key},
		"key":  {CA: good.CA, Cert: good.Cert, Key: other.Key},
	} {
		_, err := mtls.New(k)
		var f *mtls.Fault
		if !errors.As(err, &f) || f.Part != part || !errors.Is(err, sdk.InvalidArgument) || !strings.HasPrefix(err.Error(), part+": ") {
			t.Errorf("%s: %v", part, err)
		}
	}
}
