package tcptransport

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func securedPair(t testing.TB) (a, b *rigtest.Node) {
	t.Helper()
	ca := sdktest.NewAuthority(t, "ca")
	alice, bob := ca.Issue("alice", nil), ca.Issue("bob", nil)
	return rigtest.Start(t, New(), sdk.Config{Instance: 1, Keys: &alice}), rigtest.Start(t, New(), sdk.Config{Instance: 2, Keys: &bob})
}

// Rubbish on a port under TLS: closed at once or in time, and peers still
// arrive. One that speaks the protocol without TLS is told so.
func TestGarbageUnderTLS(t *testing.T) {
	a, b := securedPair(t)
	for name, bytes := range map[string]string{
		"http": "GET / HTTP/1.1\r\n\r\n", "zeros": strings.Repeat("\x00", 4096), "hello that never ends": "\x16\x03\x01\x40\x00",
		"join without TLS": string(bootstrap.Join{Kind: bootstrap.Probe}.Marshal()),
	} {
		t.Run(name, func(t *testing.T) {
			conn := dialPort(t, b.Setup.Attributes["addr"])
			if _, err := conn.Write([]byte(bytes)); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			answer := make([]byte, 64)
			n, err := conn.Read(answer)
			if name != "hello that never ends" && (n == 0 || answer[0] != 0x15) {
				t.Errorf("read %x, %v, want an alert", answer[:n], err)
			}
			for err == nil {
				_, err = conn.Read(answer)
			}
			if time.Since(start) > 10*time.Second {
				t.Errorf("closed after %v", time.Since(start))
			}
		})
	}
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ea, _ := rigtest.Connect(t, a, b, 1, ra, rb)
	s := rigtest.Sender{Endpoint: ea, Recorder: ra}
	if err := s.Send([]byte("x")); err != nil {
		t.Fatal(err)
	}
	ra.WaitDone(1)
}

func TestIdentities(t *testing.T) { rigtest.Identities(t, New) }

// TLS 1.2 is not spoken.
func TestOnlyTLS13(t *testing.T) {
	_, b := securedPair(t)
	conn := tls.Client(dialPort(t, b.Setup.Attributes["addr"]), &tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true})
	if err := conn.Handshake(); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("got %v", err)
	}
}

// What is a port of another protocol's, or another service's, is refused even
// under the same authority.
func TestAnotherProtocolUnderTLS(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	alice, bob := ca.Issue("alice", nil), ca.Issue("bob", nil)
	b := rigtest.Start(t, New(), sdk.Config{Instance: 2, Keys: &bob})
	r, err := mtls.New(alice)
	if err != nil {
		t.Fatal(err)
	}
	conn := mtls.Client(dialPort(t, b.Setup.Attributes["addr"]), r, "h2", nil)
	if err := mtls.Handshake(rigtest.Context(t), conn); !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), "no application protocol") {
		t.Errorf("got %v", err)
	}
}

// A connection that is idle, or quiet for longer, holds no buffer.
func TestIdleUnderTLS(t *testing.T) {
	a, b := securedPair(t)
	ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
	ea, _ := rigtest.Connect(t, a, b, 1, ra, rb)
	s := rigtest.Sender{Endpoint: ea, Recorder: ra}
	for n := range 100 {
		if err := s.Send(make([]byte, n*600)); err != nil {
			t.Fatal(err)
		}
	}
	ra.WaitDone(100)
	c := &b.Transport.(*Transport).chunks
	for end := time.Now().Add(rigtest.Patience); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		free := len(c.free)
		c.mu.Unlock()
		if free > 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the reader keeps its buffer")
		}
	}
}

// TestPeerFreezesUnderTLS: Send does not wait, and the end does not either.
func TestPeerFreezesUnderTLS(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	alice, bob := ca.Issue("alice", nil), ca.Issue("bob", nil)
	a := rigtest.Start(t, New(), sdk.Config{Instance: 1, Keys: &alice})
	r, err := mtls.New(bob)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // the test's own
	came := make(chan net.Conn, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			return
		}
		conn := mtls.Server(raw, r, protocol, nil)
		var join [bootstrap.JoinLen]byte
		_, _ = conn.Read(join[:])
		_, _ = conn.Write(bootstrap.Welcome.Marshal())
		came <- conn
	}()
	rec := rigtest.NewRecorder(t)
	target := sdk.Target{Local: a.Inc, Peer: sdk.Incarnation{9}, Path: sdk.MainPath, Remote: sdk.Attributes{"addr": ln.Addr().String()}, Generation: 1}
	e, err := a.Notifier().Connect(rigtest.Context(t), target, func(context.Context, []byte) ([]byte, error) {
		return bootstrap.Answer{Generation: 1, Address: ln.Addr().String()}.Marshal(), nil
	}, rec)
	if err != nil {
		t.Fatal(err)
	}
	conn := <-came
	defer conn.Close() //nolint:errcheck // the test's own
	s := rigtest.Sender{Endpoint: e, Recorder: rec}
	longest := time.Duration(0)
	for err = nil; err == nil; {
		start := time.Now()
		err = s.Try(make([]byte, 16<<10))
		longest = max(longest, time.Since(start))
	}
	if sdk.CodeOf(err) != sdk.Backpressure || longest > 2*time.Second {
		t.Errorf("%v, the longest Send took %v", err, longest)
	}
	start := time.Now()
	e.Close()
	if err := rec.WaitEnded(); sdk.CodeOf(err) != sdk.Closed || time.Since(start) > 4*time.Second {
		t.Errorf("ended with %v after %v", err, time.Since(start))
	}
	if _, _, notPosted := rec.Counts(); notPosted == 0 {
		t.Error("nothing is NotPosted although the buffer was full")
	}
}
