package tcptransport

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// stranger is a peer under the test's control: it makes the offer, and dials
// and speaks as it likes.
type stranger struct {
	t      *testing.T
	node   *rigtest.Node
	rec    *rigtest.Recorder
	sender *rigtest.Sender
	join   bootstrap.Join
	addr   string
}

func newStranger(t *testing.T, settings string) *stranger {
	t.Helper()
	s := &stranger{t: t, rec: rigtest.NewRecorder(t)}
	s.node = rigtest.Start(t, New(), sdk.Config{Instance: 7, Settings: json.RawMessage(settings)})
	target := sdk.Target{Local: s.node.Inc, Peer: sdk.Incarnation{9}, Path: sdk.MainPath, Generation: 3}
	offer := bootstrap.Offer{Token: bootstrap.NewToken(), Generation: 3, From: target.Peer, To: target.Local}
	e, raw, err := s.node.Notifier().Accept(rigtest.Context(t), target, offer.Marshal(), s.rec)
	if err != nil {
		t.Fatalf("Accept: %v", err)
	}
	s.sender = &rigtest.Sender{Endpoint: e, Recorder: s.rec}
	answer, err := bootstrap.ParseAnswer(raw)
	if err != nil {
		t.Fatal(err)
	}
	s.addr = answer.Address
	s.join = bootstrap.Join{
		Kind: bootstrap.Frames, Instance: answer.Instance, Generation: 3,
		Answered: answer.Token, Offered: offer.Token,
	}
	return s
}

func dialPort(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(rigtest.Patience))
	return conn
}

// arrive presents a join message and returns what it was answered.
func (s *stranger) arrive(j bootstrap.Join) (net.Conn, bootstrap.Verdict) {
	s.t.Helper()
	conn := dialPort(s.t, s.addr)
	verdict, err := bootstrap.Introduce(context.Background(), conn, sdk.Target{}, j)
	if err != nil {
		s.t.Fatalf("handshake: %v", err)
	}
	return conn, verdict
}

func (s *stranger) welcome() net.Conn {
	s.t.Helper()
	conn, verdict := s.arrive(s.join)
	if verdict != bootstrap.Welcome {
		s.t.Fatalf("verdict %v", verdict)
	}
	return conn
}

// wantClosed waits until the other side has closed the connection.
func wantClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	n, err := io.Copy(io.Discard, conn)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		t.Fatalf("the connection stays open, after %d bytes", n)
	}
}

// TestBrokenRecords: a peer that breaks the record protocol costs its endpoint
// only.
func TestBrokenRecords(t *testing.T) {
	receipt := func(count uint64) []byte { return appendReceipt(nil, count) }
	for name, c := range map[string]struct{ before, bad []byte }{
		"unknown kind":       {bad: []byte{4, 0, 0, 9, 1, 2, 3, 4}},
		"frame too long":     {bad: binary.LittleEndian.AppendUint32(nil, (maxFrame+1)|kindFrame<<24)},
		"short receipt":      {bad: []byte{4, 0, 0, kindReceipt, 1, 2, 3, 4}},
		"receipt for nobody": {bad: receipt(2)},
		"receipt overflow":   {bad: receipt(^uint64(0))},
		"receipt goes back":  {before: receipt(1), bad: receipt(0)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t, `{}`)
			conn := s.welcome()
			if err := s.sender.Send([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, headerLen+5)); err != nil {
				t.Fatal(err)
			}
			// In front of it something that is fine.
			if _, err := conn.Write(append(appendFrame(nil, []byte("good")), c.before...)); err != nil {
				t.Fatal(err)
			}
			s.rec.WaitReceived(1)
			if len(c.before) > 0 {
				s.rec.WaitDone(1)
			}
			if _, err := conn.Write(c.bad); err != nil {
				t.Fatal(err)
			}
			if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
				t.Errorf("ended with %v", err)
			}
			wantClosed(t, conn)
		})
	}
}

// TestPeerDiesMidStream: half a record is not delivered, whole ones before it
// are.
func TestPeerDiesMidStream(t *testing.T) {
	s := newStranger(t, `{}`)
	conn := s.welcome()
	b := appendFrame(nil, []byte("whole"))
	b = append(b, appendFrame(nil, bytes.Repeat([]byte("half"), 100))[:77]...)
	if _, err := conn.Write(b); err != nil {
		t.Fatal(err)
	}
	s.rec.WaitReceived(1)
	_ = conn.Close()
	if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	if got := s.rec.WaitReceived(1); len(got) != 1 || string(got[0]) != "whole" {
		t.Errorf("received %q", got)
	}
}

// TestPeerStopsReading: Send reports backpressure at a bound, and at the end
// what never left is NotPosted, and really never arrives.
func TestPeerStopsReading(t *testing.T) {
	const limit = 256 << 10
	s := newStranger(t, `{"send_buffer_bytes": 262144}`)
	conn := s.welcome()
	data := make([]byte, 16<<10)
	var err error
	for err == nil {
		binary.LittleEndian.PutUint64(data, uint64(s.sender.Sent()+1))
		err = s.sender.Try(data)
	}
	if sdk.CodeOf(err) != sdk.Backpressure {
		t.Fatalf("Send: %v", err)
	}
	e := s.sender.Endpoint.(*endpoint)
	e.out.mu.Lock()
	queued, chunks := e.out.queued, len(e.out.queue)
	e.out.mu.Unlock()
	if queued > limit || chunks > limit/maxFrame+2 {
		t.Errorf("%d bytes queued in %d chunks, limit %d", queued, chunks, limit)
	}
	e.Close()
	if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Closed {
		t.Errorf("ended with %v", err)
	}
	_, _, notPosted := s.rec.Counts()
	if notPosted == 0 {
		t.Error("nothing is NotPosted although the buffer was full")
	}
	// What is in the kernel may still arrive, a part of one frame at its end.
	rest, _ := io.ReadAll(conn)
	if arrived := len(rest) / (headerLen + len(data)); arrived > s.sender.Sent()-notPosted {
		t.Errorf("%d frames arrived, although of %d sent %d were not posted", arrived, s.sender.Sent(), notPosted)
	}
}

// TestHeldFramesAreNotPosted: what an accepted endpoint held for a peer that
// never came has not left the host.
func TestHeldFramesAreNotPosted(t *testing.T) {
	s := newStranger(t, `{"accept_wait_ms": 1000}`) // all are sent before it is over
	for range 5 {
		if err := s.sender.Try([]byte("held")); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("ended with %v", err)
	}
	if _, _, notPosted := s.rec.Counts(); notPosted != 5 {
		t.Errorf("%d of 5 frames are NotPosted", notPosted)
	}
	if _, verdict := s.arrive(s.join); verdict != bootstrap.UnknownToken {
		t.Errorf("a late peer: verdict %v", verdict)
	}
}

// TestSilentListener: a port where somebody accepts and says nothing.
func TestSilentListener(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // the test's own
	a := rigtest.Start(t, New(), sdk.Config{Instance: 1, Settings: json.RawMessage(`{"connect_timeout_ms": 50}`)})
	target := sdk.Target{Path: sdk.MainPath, Remote: sdk.Attributes{"addr": ln.Addr().String()}, Generation: 1}
	if err := a.Transport.(sdk.Prober).Probe(rigtest.Context(t), target); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("Probe: %v", err)
	}
	_, err = a.Notifier().Connect(rigtest.Context(t), target, func(context.Context, []byte) ([]byte, error) {
		return bootstrap.Answer{Generation: 1, Address: ln.Addr().String()}.Marshal(), nil
	}, rigtest.NewRecorder(t))
	if sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("Connect: %v", err)
	}
}

// TestGenerationsStayApart: a newer endpoint of the same peer leaves the older
// one alone, until somebody closes it.
func TestGenerationsStayApart(t *testing.T) {
	a, b := pair(t)
	senders := make([]*rigtest.Sender, 3)
	peers := make([]*rigtest.Recorder, 3)
	for g := range senders {
		ra, rb := rigtest.NewRecorder(t), rigtest.NewRecorder(t)
		ea, _ := rigtest.Connect(t, a, b, uint64(g+1), ra, rb)
		senders[g], peers[g] = &rigtest.Sender{Endpoint: ea, Recorder: ra}, rb
	}
	for g, s := range senders {
		if err := s.Send([]byte{byte(g)}); err != nil {
			t.Fatal(err)
		}
		s.Recorder.WaitDone(1)
		if got := peers[g].WaitReceived(1); len(got) != 1 || got[0][0] != byte(g) {
			t.Errorf("generation %d received %q", g, got)
		}
	}
	senders[0].Endpoint.Close()
	_ = peers[0].WaitEnded()
	if err := senders[2].Send(nil); err != nil {
		t.Fatal(err)
	}
	senders[2].Recorder.WaitDone(2)
}
