package rpctransport

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport/pb"
	"github.com/hawser-transport/hawser/sdk"
)

// stranger is a peer under the test's control.
type stranger struct {
	t      *testing.T
	node   *rigtest.Node
	rec    *rigtest.Recorder
	sender *rigtest.Sender
	join   bootstrap.Join
	addr   string
	client pb.FallbackClient
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
	conn, _, err := s.node.Transport.(*Transport).client(s.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.client = pb.NewFallbackClient(conn)
	return s
}

func (s *stranger) welcome() stream {
	s.t.Helper()
	st, verdict, err := open(rigtest.Context(s.t), s.client, s.join)
	if err != nil || verdict != bootstrap.Welcome {
		s.t.Fatalf("verdict %v, %v", verdict, err)
	}
	return st
}

func TestJoinRefused(t *testing.T) {
	s := newStranger(t, `{}`)
	for _, c := range []struct {
		name   string
		change func(j *bootstrap.Join)
		want   bootstrap.Verdict
	}{
		{"token", func(j *bootstrap.Join) { j.Answered[3] ^= 1 }, bootstrap.UnknownToken},
		{"offered token", func(j *bootstrap.Join) { j.Offered[3] ^= 1 }, bootstrap.UnknownToken},
		{"generation", func(j *bootstrap.Join) { j.Generation-- }, bootstrap.WrongGeneration},
		{"instance", func(j *bootstrap.Join) { j.Instance++ }, bootstrap.WrongInstance},
		{"kind", func(j *bootstrap.Join) { j.Kind = bootstrap.Probe }, bootstrap.WrongKind},
	} {
		j := s.join
		c.change(&j)
		if _, verdict, err := open(rigtest.Context(t), s.client, j); err != nil || verdict != c.want {
			t.Errorf("wrong %s: %v, %v, want %v", c.name, verdict, err, c.want)
		}
	}
	for name, values := range map[string][]string{"none": nil, "garbage": {"xyz"}, "two": {"a", "b"}} {
		ctx := rigtest.Context(t)
		for _, v := range values {
			ctx = metadata.AppendToOutgoingContext(ctx, joinKey, v)
		}
		st, err := s.client.Carry(ctx)
		if err != nil {
			t.Fatal(err)
		}
		header, err := st.Header()
		if err != nil {
			t.Fatal(err)
		}
		if v, err := bootstrap.ParseVerdict([]byte(header.Get(verdictKey)[0])); err != nil || v != bootstrap.NotHawser {
			t.Errorf("metadata %s: %v, %v", name, v, err)
		}
	}
	s.welcome()
}

// TestGarbageOnThePort: other protocols cost nobody anything.
func TestGarbageOnThePort(t *testing.T) {
	s := newStranger(t, `{}`)
	for _, b := range [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n"), make([]byte, 4096), bytes.Repeat([]byte{0xff}, 4096)} {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(rigtest.Patience))
		_, _ = conn.Write(b)
		_, err = io.Copy(io.Discard, conn)
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Error("the connection stays open")
		}
		_ = conn.Close()
	}
	s.welcome()
}

// TestBrokenPackets: a peer that breaks the protocol costs its endpoint only.
func TestBrokenPackets(t *testing.T) {
	for name, p := range map[string]*pb.Packet{
		"cut short":    {Frames: []byte{5, 1, 2}},
		"endless":      {Frames: bytes.Repeat([]byte{0xff}, 11)},
		"too many":     {Frames: make([]byte, packFrames+1)},
		"receipt":      {Taken: 1},
		"huge receipt": {Taken: ^uint64(0)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t, `{}`)
			st := s.welcome()
			if err := st.Send(p); err != nil {
				t.Fatal(err)
			}
			if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
				t.Errorf("ended with %v", err)
			}
			if _, err := st.Recv(); err == nil {
				t.Error("the stream goes on")
			}
		})
	}
}

// TestPeerStopsReading: Send reports backpressure at a bound, and what never
// reached the stream is NotPosted at the end.
func TestPeerStopsReading(t *testing.T) {
	s := newStranger(t, `{}`)
	s.welcome()
	data := make([]byte, 1<<20)
	var err error
	for err == nil {
		err = s.sender.Try(data)
	}
	if sdk.CodeOf(err) != sdk.Backpressure {
		t.Fatalf("Send: %v", err)
	}
	e := s.sender.Endpoint.(*endpoint)
	e.out.mu.Lock()
	queued := e.out.queued
	e.out.mu.Unlock()
	if queued > inflightBytes {
		t.Errorf("%d bytes queued", queued)
	}
	e.Close()
	if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Closed {
		t.Errorf("ended with %v", err)
	}
	if _, _, notPosted := s.rec.Counts(); notPosted == 0 {
		t.Error("nothing is NotPosted although the queue was full")
	}
}

// TestNotOurServer: a gRPC server without this service refuses.
func TestNotOurServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	other := grpc.NewServer()
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = other.Serve(ln)
	}()
	defer func() {
		other.Stop()
		<-served
	}()
	a := rigtest.Start(t, New(), sdk.Config{Instance: 1})
	target := sdk.Target{Path: sdk.MainPath, Remote: sdk.Attributes{"addr": ln.Addr().String()}, Generation: 1}
	_, err = a.Notifier().Connect(rigtest.Context(t), target, func(context.Context, []byte) ([]byte, error) {
		return bootstrap.Answer{Generation: 1, Address: ln.Addr().String()}.Marshal(), nil
	}, rigtest.NewRecorder(t))
	if sdk.CodeOf(err) == 0 {
		t.Errorf("Connect: %v", err)
	}
}

// FuzzUnpack: any bytes are refused or split into frames that pack again.
func FuzzUnpack(f *testing.F) {
	var p pack
	p.add([]byte("one"))
	p.add(nil)
	f.Add(p.b)
	f.Add(p.b[:3])
	f.Add(bytes.Repeat([]byte{0x80}, 12))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, err := unpack(b, nil)
		if err != nil {
			return
		}
		var again pack
		for _, fr := range frames {
			again.add(fr)
		}
		second, err := unpack(again.b, nil)
		if err != nil || len(second) != len(frames) {
			t.Fatalf("%d frames, then %d, %v", len(frames), len(second), err)
		}
	})
}
