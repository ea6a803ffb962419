package streams

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// arrival is an endpoint that keeps what arrives.
type arrival struct {
	conns chan net.Conn
	over  chan struct{}
	end   sync.Once
}

func (a *arrival) Send([]sdk.Frame, bool) (int, error) { return 0, nil }
func (a *arrival) Close()                              { a.End(nil) }
func (a *arrival) End(error)                           { a.end.Do(func() { close(a.over) }) }
func (a *arrival) Arrive(conn net.Conn)                { a.conns <- conn }

// house is a transport that is only its doors, which expects one peer.
type house struct {
	t     *testing.T
	base  Base[*arrival]
	doors *Doors[*arrival]
	addr  string
	guest *arrival
	join  bootstrap.Join
	log   lines
}

// lines are what was logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

func newHouse(t *testing.T, patience time.Duration) *house {
	t.Helper()
	h := &house{t: t, base: NewBase[*arrival](), guest: &arrival{conns: make(chan net.Conn, 1), over: make(chan struct{})}}
	cfg := sdk.Config{Instance: 7, Log: slog.New(slog.NewTextHandler(&h.log, nil))}
	setup, err := h.base.Listen(rigtest.Context(t), cfg, Settings{Listen: DefaultListen}, func(ln net.Listener) {
		h.doors = OpenDoors(&h.base, ln, "test/1", patience)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.base.Life.Close(rigtest.Context(t), h.doors.Close); err != nil {
			t.Error(err)
		}
	})
	h.addr = setup.Attributes[address.Attribute]
	target := sdk.Target{Local: sdk.Incarnation{1}, Peer: sdk.Incarnation{9}, Path: sdk.MainPath, Generation: 3}
	offer := bootstrap.Offer{Token: bootstrap.NewToken(), Generation: 3, From: target.Peer, To: target.Local}
	_, raw, err := h.base.Answer(target, offer.Marshal(), func() (*arrival, func(bootstrap.Token, time.Duration)) {
		return h.guest, func(bootstrap.Token, time.Duration) { <-h.guest.over }
	})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := bootstrap.ParseAnswer(raw)
	if err != nil {
		t.Fatal(err)
	}
	h.join = bootstrap.Join{
		Kind: bootstrap.Frames, Instance: answer.Instance, Generation: 3, Answered: answer.Token, Offered: offer.Token,
	}
	return h
}

func (h *house) dial() net.Conn {
	h.t.Helper()
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(rigtest.Patience))
	return conn
}

// arrive presents a join message and returns what it was answered.
func (h *house) arrive(j bootstrap.Join) (net.Conn, bootstrap.Verdict) {
	h.t.Helper()
	conn := h.dial()
	verdict, err := bootstrap.Introduce(context.Background(), conn, sdk.Target{}, j)
	if err != nil {
		h.t.Fatalf("handshake: %v", err)
	}
	return conn, verdict
}

// welcome lets the peer arrive, and wants its endpoint to have the connection.
func (h *house) welcome() {
	h.t.Helper()
	conn, verdict := h.arrive(h.join)
	if verdict != bootstrap.Welcome {
		h.t.Fatalf("verdict %v", verdict)
	}
	arrived := <-h.guest.conns
	defer arrived.Close() //nolint:errcheck // the test's own
	if _, err := arrived.Write([]byte{42}); err != nil {
		h.t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
		h.t.Errorf("the peer's connection: %v", err)
	}
}

// wantClosed waits until the other side has closed the connection.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	n, err := io.Copy(io.Discard, conn)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatalf("the connection stays open, after %d bytes", n)
	}
}

// TestJoinRefused: whatever is wrong with a join message costs the stranger
// his connection and the expected peer nothing.
func TestJoinRefused(t *testing.T) {
	h := newHouse(t, rigtest.Patience)
	for _, c := range []struct {
		name   string
		change func(j *bootstrap.Join)
		want   bootstrap.Verdict
	}{
		{"token", func(j *bootstrap.Join) { j.Answered[3] ^= 1 }, bootstrap.UnknownToken},
		{"offered token", func(j *bootstrap.Join) { j.Offered[3] ^= 1 }, bootstrap.UnknownToken},
		{"older generation", func(j *bootstrap.Join) { j.Generation-- }, bootstrap.WrongGeneration},
		{"newer generation", func(j *bootstrap.Join) { j.Generation++ }, bootstrap.WrongGeneration},
		{"instance", func(j *bootstrap.Join) { j.Instance++ }, bootstrap.WrongInstance},
		{"kind", func(j *bootstrap.Join) { j.Kind = 4 }, bootstrap.WrongKind},
		{"use", func(j *bootstrap.Join) { j.Kind = bootstrap.Memory }, bootstrap.WrongKind},
	} {
		j := h.join
		c.change(&j)
		conn, verdict := h.arrive(j)
		if verdict != c.want {
			t.Errorf("wrong %s: verdict %v, want %v", c.name, verdict, c.want)
		}
		wantClosed(t, conn)
	}
	conn, verdict := h.arrive(bootstrap.Join{Kind: bootstrap.Probe})
	if verdict != bootstrap.Welcome {
		t.Errorf("a probe: verdict %v", verdict)
	}
	wantClosed(t, conn)
	h.welcome()
	if _, verdict := h.arrive(h.join); verdict != bootstrap.UnknownToken {
		t.Errorf("a used token: verdict %v", verdict)
	}
	if n := h.doors.turnedAway.Load(); n != 8 {
		t.Errorf("%d connections counted as turned away, want 8", n)
	}
}

// TestGarbageOnThePort: rubbish, another protocol, half a message and silence
// end with the connection closed, and the peer still arrives.
func TestGarbageOnThePort(t *testing.T) {
	h := newHouse(t, time.Second)
	for name, b := range map[string][]byte{
		"http":    []byte("GET / HTTP/1.1\r\nHost: somewhere-long-enough-to-fill-it\r\n\r\n"),
		"zeros":   make([]byte, 4096),
		"half":    h.join.Marshal()[:20],
		"silence": nil,
		"version": append([]byte("HWSR\x02\x01\x00\x00"), make([]byte, 48)...),
	} {
		t.Run(name, func(t *testing.T) {
			conn := h.dial()
			if _, err := conn.Write(b); err != nil {
				t.Fatal(err)
			}
			wantClosed(t, conn)
		})
	}
	h.welcome()
}

// TestHalfOpenFlood: silent connections drive out each other, not a peer.
func TestHalfOpenFlood(t *testing.T) {
	h := newHouse(t, time.Minute)
	conns := make([]net.Conn, maxHalfOpen+10)
	for i := range conns {
		conns[i] = h.dial()
	}
	h.welcome()
	for _, c := range conns[:10] {
		wantClosed(t, c)
	}
}

// TestStrangersDoNotFillTheLog: whoever uses TLS where there is none is told so,
// and logged, but not each time.
func TestStrangersDoNotFillTheLog(t *testing.T) {
	h := newHouse(t, rigtest.Patience)
	for range 20 {
		if err := tls.Client(h.dial(), &tls.Config{InsecureSkipVerify: true}).Handshake(); err == nil {
			t.Fatal("a handshake without TLS there")
		}
	}
	h.log.mu.Lock()
	defer h.log.mu.Unlock()
	if n := len(h.log.all); n != 5 || !strings.Contains(h.log.all[4], "uses TLS, which is not configured here") || !strings.Contains(h.log.all[4], `"so far"=16`) {
		t.Errorf("%d lines: %v", n, h.log.all)
	}
}

// TestClosedDoors: those who have not said what they are for are let go, and
// nobody comes in.
func TestClosedDoors(t *testing.T) {
	h := newHouse(t, time.Minute)
	conn := h.dial()
	for in := 0; in == 0; time.Sleep(time.Millisecond) {
		h.doors.mu.Lock()
		in = h.doors.halfOpen.Len()
		h.doors.mu.Unlock()
	}
	if err := h.base.Life.Close(rigtest.Context(t), h.doors.Close); err != nil {
		t.Error(err)
	}
	wantClosed(t, conn)
	if conn, err := net.Dial("tcp", h.addr); err == nil {
		_ = conn.Close()
		t.Error("the door is open")
	}
}
