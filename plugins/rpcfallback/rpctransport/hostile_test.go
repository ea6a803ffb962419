package rpctransport

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

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
	conn, _, err := s.node.Transport.(*Transport).client(s.addr, sdk.Target{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	s.client = pb.NewFallbackClient(conn)
	return s
}

func (s *stranger) welcome() stream {
	s.t.Helper()
	st, _ := s.welcomeFor()
	return st
}

// welcomeFor also returns what ends the stream.
func (s *stranger) welcomeFor() (stream, func()) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(rigtest.Context(s.t))
	s.t.Cleanup(cancel)
	st, verdict, err := open(ctx, s.client, s.join)
	if err != nil || verdict != bootstrap.Welcome {
		s.t.Fatalf("verdict %v, %v", verdict, err)
	}
	return st, cancel
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
		"cut short":     {Frames: []byte{5, 1, 2}},
		"endless":       {Frames: bytes.Repeat([]byte{0xff}, 11)},
		"too many":      {Frames: make([]byte, packFrames+1)},
		"large in pack": {Frames: append(binary.AppendUvarint(nil, maxPacked+1), make([]byte, maxPacked+1)...)},
		"receipt":       {Taken: 1},
		"huge receipt":  {Taken: ^uint64(0)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t, `{}`)
			st := s.welcome()
			if err := st.SendMsg(p); err != nil {
				t.Fatal(err)
			}
			if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
				t.Errorf("ended with %v", err)
			}
			if err := st.RecvMsg(new(pb.Packet)); err == nil {
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

// TestBrokenChunks: a sequence of chunks that makes no sense ends the endpoint,
// and nothing of it is delivered.
func TestBrokenChunks(t *testing.T) {
	some, whole := make([]byte, 1000), make([]byte, maxPacked+1)
	for name, packets := range map[string][]*pb.Packet{
		"chunk of nothing":     {{Chunk: some}},
		"no chunk":             {{Large: 1 << 20}},
		"an empty one":         {{Large: 1 << 20, Chunk: some}, {Chunk: []byte{}, Large: 1 << 20}},
		"small":                {{Large: maxPacked, Chunk: some}},
		"too large":            {{Large: maxFrame + 1, Chunk: some}},
		"far too large":        {{Large: 1 << 63, Chunk: some}},
		"two at a time":        {{Large: 1 << 20, Chunk: some}, {Large: 1 << 20, Chunk: some}},
		"longer than it said":  {{Large: maxPacked + 2, Chunk: whole}, {Chunk: some}},
		"goes on after it":     {{Large: maxPacked + 1, Chunk: whole[:1]}, {Chunk: whole}},
		"longer at the start":  {{Large: maxPacked + 1, Chunk: make([]byte, maxPacked+2)}},
		"over, then one more":  {{Large: maxPacked + 1, Chunk: some}, {Large: maxPacked + 1, Chunk: whole[1000:]}},
		"receipt for the part": {{Taken: 1, Large: 1 << 20, Chunk: some}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStranger(t, `{}`)
			st := s.welcome()
			for _, p := range packets {
				if err := st.SendMsg(p); err != nil {
					break // it has ended already
				}
			}
			if err := s.rec.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable {
				t.Errorf("ended with %v", err)
			}
			if n, _, _ := s.rec.Counts(); n != 0 {
				t.Errorf("%d frames were delivered", n)
			}
		})
	}
}

// TestAnnouncedIsNotAllocated: a peer's announcement costs nothing, only what
// it sends does.
func TestAnnouncedIsNotAllocated(t *testing.T) {
	var a assembly
	most := 0
	for sent := 0; sent < 8<<20; {
		total, chunk := uint64(0), make([]byte, 3000)
		if sent == 0 {
			total = maxFrame
		}
		if _, err := a.take(total, chunk); err != nil {
			t.Fatal(err)
		}
		sent += len(chunk)
		if limit := max(firstGrowth, 4*sent+3000); cap(a.got) > limit || cap(a.got) > maxFrame {
			t.Fatalf("%d bytes are held after %d were sent", cap(a.got), sent)
		}
		most = max(most, cap(a.got))
	}
	if most != maxFrame {
		t.Errorf("at most %d", most)
	}
}

// TestPlainProtobufPeer: what the codec writes and reads is fallback.proto, as
// protobuf's own code has it.
func TestPlainProtobufPeer(t *testing.T) {
	for _, size := range []int{0, 1, 900, inlined, 5000, packBytes - 100} {
		for _, chunk := range []int{0, 1, chunkBytes} {
			p := &packet{taken: 77}
			if size > 0 {
				p.pack = new(pack)
				for left := size; left > 0; left -= min(left, 700) {
					p.pack.add(1, bytes.Repeat([]byte{byte(left)}, min(left, 700)))
				}
			}
			if chunk > 0 {
				p.large, p.chunk = 1<<20, bytes.Repeat([]byte{5}, chunk)
			}
			wire, err := newCodec().Marshal(p)
			if err != nil {
				t.Fatal(err)
			}
			var plain pb.Packet
			if err := proto.Unmarshal(wire.Materialize(), &plain); err != nil {
				t.Fatal(err)
			}
			frames, err := unpack(plain.Frames, nil)
			if err != nil || plain.Taken != 77 || plain.Large != p.large || !bytes.Equal(plain.Chunk, p.chunk) || p.pack != nil && len(frames) != len(p.pack.ids) {
				t.Fatalf("%d and %d bytes: %d frames, %d taken, large %d, chunk of %d, %v", size, chunk, len(frames), plain.Taken, plain.Large, len(plain.Chunk), err)
			}
			again, err := proto.Marshal(&plain)
			if err != nil {
				t.Fatal(err)
			}
			var back packet
			if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(again)}, &back); err != nil {
				t.Fatal(err)
			}
			if back.taken != 77 || back.large != p.large || !bytes.Equal(back.chunk, plain.Chunk) || !bytes.Equal(back.frames, plain.Frames) {
				t.Fatalf("%d and %d bytes: read back as %d taken, large %d", size, chunk, back.taken, back.large)
			}
			back.release()
		}
	}
}

// FuzzUnpack: any bytes are refused or split into frames that pack again.
func FuzzUnpack(f *testing.F) {
	var p pack
	p.add(1, []byte("one"))
	p.add(2, nil)
	f.Add(p.pieces[0])
	f.Add(p.pieces[0][:3])
	f.Add(bytes.Repeat([]byte{0x80}, 12))
	f.Fuzz(func(t *testing.T, b []byte) {
		frames, err := unpack(b, nil)
		if err != nil {
			return
		}
		var again pack
		for i, fr := range frames {
			again.add(uint64(i), fr)
		}
		second, err := unpack(bytes.Join(again.pieces, nil), nil)
		if err != nil || len(second) != len(frames) || again.size != len(bytes.Join(again.pieces, nil)) {
			t.Fatalf("%d frames, then %d, %v", len(frames), len(second), err)
		}
	})
}

// FuzzPacket: the codec reads any bytes as protobuf's own code does, or refuses
// them if that does.
func FuzzPacket(f *testing.F) {
	for _, p := range []*pb.Packet{
		{Frames: []byte{3, 'a', 'b', 'c', 0}, Taken: 5}, {Large: maxPacked + 3, Chunk: make([]byte, 100)}, {Taken: 1 << 63},
	} {
		b, err := proto.Marshal(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append([]byte{0x2a, 1, 7}, b...)) // a field of later versions
		f.Add(append(b, b...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var p packet
		var plain pb.Packet
		err, plainErr := p.parse(b), proto.Unmarshal(b, &plain)
		if err != nil && plainErr == nil {
			t.Fatalf("refused: %v", err)
		}
		if err == nil && plainErr == nil && (p.taken != plain.Taken || p.large != plain.Large || !bytes.Equal(p.chunk, plain.Chunk) || !bytes.Equal(p.frames, plain.Frames)) {
			t.Fatal("read otherwise")
		}
	})
}

// FuzzChunks: any sequence of chunks, each told by three bytes of an announced
// length and three of its own, is refused or makes frames of the announced
// length, and what is held stays within its bounds.
func FuzzChunks(f *testing.F) {
	chunks := func(pairs ...int) (b []byte) {
		for _, n := range pairs {
			b = append(b, byte(n), byte(n>>8), byte(n>>16))
		}
		return b
	}
	f.Add(chunks(maxPacked+3, 60000, 0, 5539, 1<<20, chunkBytes))
	f.Add(chunks(1<<20, 1, 1<<20, 1))
	f.Add(chunks(0, 1))
	f.Add(chunks(1<<24-1, maxMessage, 0, maxMessage, 0, maxMessage))
	data := make([]byte, maxMessage)
	f.Fuzz(func(t *testing.T, b []byte) {
		var in intake
		sent, total := 0, 0
		for ; len(b) >= 6; b = b[6:] {
			announced := int(b[0]) | int(b[1])<<8 | int(b[2])<<16
			n := min(int(b[3])|int(b[4])<<8|int(b[5])<<16, maxMessage)
			if sent += n; announced != 0 {
				sent, total = n, announced
			}
			frames, err := in.take(&packet{large: uint64(announced), chunk: data[:n]}, nil)
			if err != nil {
				return
			}
			if len(frames) > 0 && (len(frames) > 1 || len(frames[0]) != total || sent != total) {
				t.Fatalf("%d frames, the first of %d bytes, after %d of %d", len(frames), len(frames[0]), sent, total)
			}
			if held := cap(in.assembly.got); held > max(firstGrowth, 4*sent) || held > maxFrame {
				t.Fatalf("%d bytes are held after %d were sent", held, sent)
			}
		}
	})
}
