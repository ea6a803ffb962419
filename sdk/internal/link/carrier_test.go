package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

const testMax = 1 << 20

func TestMain(m *testing.M) {
	if child := os.Getenv(childEnv); child != "" {
		runChild(child)
		return
	}
	goleak.VerifyTestMain(m)
}

// pair is two connected carriers, and the way to write raw bytes to the
// second.
type pair struct {
	a, b Carrier
	// garbage makes b's other end something that sends these bytes and then
	// ends.
	garbage func(t *testing.T, b []byte) Carrier
}

// each runs a test once for each kind of carrier.
func each(t *testing.T, f func(t *testing.T, p pair)) {
	inTurn(t, func(t *testing.T, mk func(t *testing.T) pair) {
		t.Parallel()
		runPair(t, mk, f)
	})
}

func runPair(t *testing.T, mk func(t *testing.T) pair, f func(t *testing.T, p pair)) {
	p := mk(t)
	t.Cleanup(func() {
		p.a.Close()
		p.b.Close()
	})
	f(t, p)
}

func inTurn(t *testing.T, f func(t *testing.T, mk func(t *testing.T) pair)) {
	kinds := map[string]func(t *testing.T) pair{"grpc": streamPair}
	addSocketKinds(kinds)
	for name, mk := range kinds {
		t.Run(name, func(t *testing.T) { f(t, mk) })
	}
}

// pipeStream is a PacketStream over channels.
type pipeStream struct {
	out, in chan []byte
	gone    chan struct{} // this end
	peer    chan struct{}
	once    *sync.Once
}

func newPipe() (a, b pipeStream) {
	x, y := make(chan []byte, 1), make(chan []byte, 1)
	g, h := make(chan struct{}), make(chan struct{})
	return pipeStream{x, y, g, h, new(sync.Once)}, pipeStream{y, x, h, g, new(sync.Once)}
}

func (p pipeStream) Send(b []byte) error {
	select {
	case p.out <- bytes.Clone(b):
		return nil
	case <-p.gone:
		return io.ErrClosedPipe
	case <-p.peer:
		return io.EOF
	}
}

func (p pipeStream) Recv() ([]byte, error) {
	select {
	case b := <-p.in:
		return b, nil
	case <-p.gone:
		return nil, io.ErrClosedPipe
	case <-p.peer:
		select {
		case b := <-p.in: // what was sent before the end
			return b, nil
		default:
			return nil, io.EOF
		}
	}
}

func (p pipeStream) Close() error {
	p.once.Do(func() { close(p.gone) })
	return nil
}

func streamPair(t *testing.T) pair {
	a, b := newPipe()
	return pair{
		a: NewStream(a, testMax), b: NewStream(b, testMax),
		garbage: func(t *testing.T, raw []byte) Carrier {
			a, b := newPipe()
			c := NewStream(b, testMax)
			t.Cleanup(func() { c.Close() })
			if err := a.Send(raw); err != nil {
				t.Fatal(err)
			}
			a.Close()
			return c
		},
	}
}

func mustSend(t testing.TB, c Carrier, mode Mode, recs ...Record) {
	t.Helper()
	if n, err := c.Send(recs, mode); n != len(recs) || err != nil {
		t.Fatalf("Send = %d, %v; want %d", n, err, len(recs))
	}
}

// recvN receives n records and copies their payloads.
func recvN(t testing.TB, c Carrier, n int) []Record {
	t.Helper()
	var got, batch []Record
	for len(got) < n {
		var err error
		if batch, err = c.Recv(batch[:0]); err != nil {
			t.Fatalf("Recv after %d of %d records: %v", len(got), n, err)
		}
		if len(batch) == 0 {
			t.Fatal("Recv returned nothing")
		}
		for _, r := range batch {
			r.Payload = bytes.Clone(r.Payload)
			got = append(got, r)
		}
	}
	if len(got) > n {
		t.Fatalf("received %d records, want %d", len(got), n)
	}
	return got
}

// pattern is a payload that tells its record and position.
func pattern(id uint64, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(id), byte(id >> 8), byte(id >> 16)})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func TestEveryTypeAndField(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		var sent []Record
		for typ := Send; typ <= Dropped; typ++ {
			if typ == Files {
				continue
			}
			sent = append(sent, Record{Type: typ, Endpoint: uint64(typ) << 40, ID: ^uint64(typ), Payload: []byte{byte(typ), 0}})
		}
		mustSend(t, p.a, 0, sent...)
		for i, r := range recvN(t, p.b, len(sent)) {
			w := sent[i]
			if r.Type != w.Type || r.Endpoint != w.Endpoint || r.ID != w.ID || !bytes.Equal(r.Payload, w.Payload) || r.Files != nil {
				t.Errorf("record %d = %+v, want %+v", i, r, w)
			}
		}
		// And the other way.
		mustSend(t, p.b, More, sent[0])
		if r := recvN(t, p.a, 1)[0]; r.ID != sent[0].ID {
			t.Errorf("the other way: %+v", r)
		}
	})
}

func TestSizes(t *testing.T) {
	sizes := []int{0, 1, HeaderSize - 1, HeaderSize, 4096, readBuffer - HeaderSize - 1, readBuffer - HeaderSize,
		readBuffer, packetSize - HeaderSize, packetSize - HeaderSize + 1, packetSize + 1, testMax - 1, testMax, 3, 0}
	each(t, func(t *testing.T, p pair) {
		for _, mode := range []Mode{0, More} {
			var sent []Record
			for i, n := range sizes {
				sent = append(sent, Record{Type: Received, ID: uint64(i), Payload: pattern(uint64(i), n)})
			}
			go func() {
				for i := range sent {
					if n, err := p.a.Send(sent[i:i+1], mode|Wait); n != 1 || err != nil {
						t.Errorf("Send = %d, %v", n, err)
						p.a.Close()
						return
					}
				}
			}()
			for i, r := range recvN(t, p.b, len(sent)) {
				if r.ID != uint64(i) || !bytes.Equal(r.Payload, sent[i].Payload) {
					t.Fatalf("record %d of %d bytes came as id %d with %d bytes", i, len(sent[i].Payload), r.ID, len(r.Payload))
				}
			}
		}
	})
}

func TestInvalidRecordsAreRefused(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		ok := Record{Type: Ping, ID: 1}
		many := make([]*os.File, MaxFiles+1)
		for i := range many {
			many[i] = os.Stdin
		}
		for name, bad := range map[string]Record{
			"too large":            {Type: Send, Payload: make([]byte, testMax+1)},
			"type 0":               {},
			"type 12":              {Type: 12},
			"files on another":     {Type: Send, Files: many[:1]},
			"too many files":       {Type: Files, Files: many},
			"file that was closed": {Type: Files, Files: []*os.File{closedFile(t)}},
		} {
			n, err := p.a.Send([]Record{ok, bad, ok}, 0)
			if n != 1 || !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: Send = %d, %v; want 1, ErrInvalid", name, n, err)
			}
			if r := recvN(t, p.b, 1)[0]; r.Type != Ping || r.ID != 1 {
				t.Errorf("%s: received %+v", name, r)
			}
		}
		if !p.a.CarriesFiles() {
			_, err := p.a.Send([]Record{{Type: Files, Files: many[:1]}}, 0)
			if !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("files: %v, want ErrUnsupported", err)
			}
		}
		if n, err := p.a.Send(nil, 0); n != 0 || err != nil {
			t.Errorf("Send of nothing = %d, %v", n, err)
		}
		mustSend(t, p.a, 0, ok) // it goes on
		recvN(t, p.b, 1)
	})
}

func closedFile(t *testing.T) *os.File {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	return r
}

// fill sends until the carrier is full and returns how many records it took.
func fill(t *testing.T, c Carrier, size int) int {
	t.Helper()
	rec := []Record{{Type: Send, Payload: make([]byte, size)}}
	for n := 0; ; n++ {
		rec[0].ID = uint64(n)
		took, err := c.Send(rec, 0)
		if errors.Is(err, ErrFull) && took == 0 {
			return n
		}
		if took != 1 || err != nil {
			t.Fatalf("Send = %d, %v", took, err)
		}
		if n > 64<<20/size {
			t.Fatal("a peer that does not read is given bytes without end")
		}
	}
}

func TestPeerThatStopsReading(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		const size = 64 << 10
		n := fill(t, p.a, size)
		// A waiting record that is bigger than what small ones leave, and
		// small ones behind it.
		const waiters = 4
		var wg sync.WaitGroup
		for i := range waiters {
			wg.Go(func() {
				mustSend(t, p.a, Wait, Record{Type: Send, ID: uint64(1000000 + i), Payload: make([]byte, testMax)})
			})
		}
		got := recvN(t, p.b, n)
		for i, r := range got {
			if r.ID != uint64(i) {
				t.Fatalf("record %d has id %d", i, r.ID)
			}
		}
		recvN(t, p.b, waiters)
		wg.Wait()
		mustSend(t, p.a, 0, Record{Type: Ping})
		recvN(t, p.b, 1)
	})
}

// A record over the buffer's bound fits an empty buffer, and only that.
func TestBiggerThanTheBuffer(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		big := Record{Type: Send, ID: 1, Payload: pattern(1, testMax)}
		q := queueOf(p.a)
		q.limit = testMax / 2
		mustSend(t, p.a, 0, big)
		n, err := p.a.Send([]Record{big}, 0)
		for n == 1 { // the one before may have left at once
			n, err = p.a.Send([]Record{big}, 0)
		}
		if err != ErrFull {
			t.Errorf("Send: %v, want ErrFull", err)
		}
		go func() { _, _ = p.a.Send([]Record{{Type: Ping, ID: 2}}, Wait) }()
		var in []Record
		for last := uint64(0); last != 2; {
			if in, err = p.b.Recv(in[:0]); err != nil {
				t.Fatal(err)
			}
			for _, r := range in {
				if last = r.ID; r.ID == 1 && !bytes.Equal(r.Payload, big.Payload) {
					t.Error("damaged")
				}
			}
		}
	})
}

func TestCloseUnblocks(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		fill(t, p.a, 64<<10)
		rec := []Record{{Type: Send, Payload: make([]byte, 64<<10)}}
		errs := make(chan error, 3)
		for range 2 {
			go func() {
				for {
					if _, err := p.a.Send(rec, Wait); err != nil {
						errs <- err
						return
					}
				}
			}()
		}
		go func() {
			_, err := p.a.Recv(nil)
			errs <- err
		}()
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { p.a.Close() })
		}
		for range 3 {
			if err := <-errs; err != ErrClosed {
				t.Errorf("unblocked with %v, want ErrClosed", err)
			}
		}
		wg.Wait()
		if n, err := p.a.Send(rec, 0); n != 0 || err != ErrClosed {
			t.Errorf("Send after Close = %d, %v", n, err)
		}
		for range 2 {
			if _, err := p.a.Recv(nil); err != ErrClosed {
				t.Errorf("Recv after Close: %v", err)
			}
		}
	})
}

func TestEndOfThePeer(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		// b has something unread, so that a socket reports a reset.
		mustSend(t, p.a, 0, Record{Type: Ping})
		mustSend(t, p.b, 0, Record{Type: Pong})
		recvN(t, p.a, 1)
		recvN(t, p.b, 1)
		mustSend(t, p.a, 0, Record{Type: Ping})
		p.b.Close()
		for range 2 {
			if _, err := p.a.Recv(nil); err != io.EOF {
				t.Errorf("Recv: %v, want EOF", err)
			}
		}
		if _, err := p.a.Send([]Record{{Type: Ping}}, Wait); err != ErrClosed {
			t.Errorf("Send: %v, want ErrClosed", err)
		}
	})
}

// The reader drains what a dead peer had sent, even after a write failed.
func TestDrainAfterTheEnd(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		mustSend(t, p.b, 0, Record{Type: Received, ID: 7})
		got := recvN(t, p.a, 1) // it has left b
		mustSend(t, p.b, 0, Record{Type: Received, ID: 8})
		waitQuiet(p.b)
		p.b.Close()
		for {
			if _, err := p.a.Send([]Record{{Type: Ping}}, 0); err != nil {
				break
			}
		}
		got = append(got, recvN(t, p.a, 1)...)
		if got[0].ID != 7 || got[1].ID != 8 {
			t.Errorf("received %+v", got)
		}
		if _, err := p.a.Recv(nil); err != io.EOF {
			t.Errorf("then %v, want EOF", err)
		}
	})
}

// waitQuiet waits until a carrier's buffer has left the process.
func waitQuiet(c Carrier) {
	q := queueOf(c)
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.ended && (q.busy || q.pendingLocked() > 0) {
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
	}
}

func TestConcurrentSenders(t *testing.T) {
	each(t, func(t *testing.T, p pair) {
		const senders, each = 8, 2000
		for s := range senders {
			go func() {
				modes := []Mode{Wait, Wait | More}
				for i := 0; i < each; {
					n := min(1+i%7, each-i)
					recs := make([]Record, n)
					for k := range recs {
						id := uint64(i + k)
						recs[k] = Record{Type: Send, Endpoint: uint64(s), ID: id, Payload: binary.LittleEndian.AppendUint64(make([]byte, i%300), id)}
					}
					if took, err := p.a.Send(recs, modes[i%2]); took != n || err != nil {
						t.Errorf("Send = %d, %v", took, err)
						p.a.Close()
						return
					}
					i += n
				}
			}()
		}
		var next [senders]uint64
		for _, r := range recvN(t, p.b, senders*each) {
			if r.ID != next[r.Endpoint] || binary.LittleEndian.Uint64(r.Payload[len(r.Payload)-8:]) != r.ID {
				t.Fatalf("sender %d: id %d, want %d", r.Endpoint, r.ID, next[r.Endpoint])
			}
			next[r.Endpoint]++
		}
	})
}

func TestGarbage(t *testing.T) {
	good := appendRecord(nil, &Record{Type: Ping, ID: 5, Payload: []byte("hello")})
	alter := func(at int, v byte) []byte {
		b := bytes.Clone(good)
		b[at] = v
		return b
	}
	// The error's text; "" for EOF.
	for name, c := range map[string]struct {
		raw    []byte
		text   string
		stream string // if it differs for a stream of packets
	}{
		"nothing":           {nil, "", ""},
		"type 0":            {alter(4, 0), "unknown record type 0", ""},
		"type 12":           {alter(4, 12), "unknown record type 12", ""},
		"flags":             {alter(5, 0x80), "flags 0x80", ""},
		"files on a ping":   {alter(6, 1), "with 1 files", ""},
		"huge":              {alter(3, 0xff), "payload of", ""},
		"too many files":    {append([]byte{0, 0, 0, 0, byte(Files), 0, MaxFiles + 1, 0}, make([]byte, 16)...), "17 files", ""},
		"files that lack":   {append([]byte{0, 0, 0, 0, byte(Files), 0, 1, 0}, make([]byte, 16)...), "none came", ""},
		"half a header":     {good[:HeaderSize/2], "", "ends inside"},
		"half a record":     {good[:len(good)-1], "", "ends inside"},
		"text":              {[]byte("panic: runtime error: index out of range\n"), "unknown record type", ""},
		"zeros":             {make([]byte, 4096), "unknown record type 0", ""},
		"ones":              {bytes.Repeat([]byte{0xff}, 4096), "unknown record type 255", ""},
		"one byte too many": {append(bytes.Clone(good), 1), "", "ends inside"},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, p pair) {
				raw, whole := c.raw, 0
				for n := range 3 { // also behind good records, which are delivered
					x := p.garbage(t, append(bytes.Repeat(good, n), raw...))
					whole = n
					if name == "one byte too many" {
						whole++
					}
					recvN(t, x, whole)
					text := c.text
					if _, ok := x.(*stream); ok && c.stream != "" {
						text = c.stream
					}
					for range 2 {
						_, err := x.Recv(nil)
						if text == "" && err != io.EOF || text != "" && (!errors.Is(err, ErrViolation) || !strings.Contains(err.Error(), text)) {
							t.Errorf("Recv: %v, want %q", err, text)
						}
					}
					if _, err := x.Send([]Record{{Type: Ping}}, Wait); err != ErrClosed {
						t.Errorf("Send: %v, want ErrClosed", err)
					}
				}
			})
		})
	}
}

// A quiet carrier keeps small buffers only, and a busy one does not allocate.
func TestMemory(t *testing.T) {
	inTurn(t, func(t *testing.T, mk func(t *testing.T) pair) { runPair(t, mk, testMemory) })
}

func testMemory(t *testing.T, p pair) {
	small, big := Record{Type: Send, Payload: make([]byte, 64)}, Record{Type: Send, Payload: make([]byte, testMax)}
	var batch []Record
	trip := func(r *[1]Record, mode Mode) {
		if n, err := p.a.Send(r[:], mode|Wait); n != 1 || err != nil {
			t.Fatalf("Send = %d, %v", n, err)
		}
		var err error
		if batch, err = p.b.Recv(batch[:0]); err != nil || len(batch) != 1 {
			t.Fatalf("Recv: %d records, %v", len(batch), err)
		}
	}
	trip(&[1]Record{big}, 0)
	for range 2*slackRounds + 2 {
		trip(&[1]Record{small}, 0)
	}
	q := queueOf(p.a)
	q.mu.Lock()
	if n := cap(q.in.b) + cap(q.out.b); n > 2*queueKeep {
		t.Errorf("the sender keeps %d bytes", n)
	}
	q.mu.Unlock()
	s, ok := p.b.(interface{ buffered() int })
	if !ok {
		return // packets belong to their stream
	}
	if n := s.buffered(); n != readBuffer {
		t.Errorf("the reader keeps %d bytes", n)
	}
	for _, r := range [][1]Record{{small}, {big}} {
		for _, mode := range []Mode{0, More} {
			rec := &r
			for range 4 {
				trip(rec, mode)
			}
			if n := testing.AllocsPerRun(50, func() { trip(rec, mode) }); n >= 1 {
				t.Errorf("%.1f allocations for each record of %d bytes, mode %d", n, len(r[0].Payload), mode)
			}
		}
	}
}
