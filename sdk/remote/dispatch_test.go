package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// nowhere is a carrier that takes everything.
type nowhere struct{ sent int }

func (n *nowhere) Send(recs []link.Record, _ link.Mode) (int, error) {
	n.sent += len(recs)
	return len(recs), nil
}
func (*nowhere) Recv(dst []link.Record) ([]link.Record, error) { return dst, link.ErrClosed }
func (*nowhere) CarriesFiles() bool                            { return false }
func (*nowhere) Moved() uint64                                 { return 0 }
func (*nowhere) Close() error                                  { return nil }

// strict is a Handler that fails the test when it is called wrongly.
type strict struct {
	t        testing.TB
	sent     uint64 // ids 1..sent went out
	seen     map[uint64]bool
	calls    []string
	ended    error
	inFlight bool
}

func (s *strict) call(what string) func() {
	if s.inFlight || s.ended != nil {
		s.t.Fatalf("%s: in flight %t, ended %v", what, s.inFlight, s.ended)
	}
	s.inFlight = true
	s.calls = append(s.calls, what)
	return func() { s.inFlight = false }
}

func (s *strict) Completed(cs []sdk.Completion) {
	defer s.call(fmt.Sprintf("completed %d", len(cs)))()
	if s.seen == nil {
		s.seen = map[uint64]bool{}
	}
	for _, c := range cs {
		if c.ID == 0 || c.ID > s.sent || s.seen[c.ID] || !c.Outcome.Valid() || (c.Outcome == sdk.Done) == c.Code.Valid() {
			s.t.Fatalf("%+v", c)
		}
		s.seen[c.ID] = true
	}
}

func (s *strict) Received(frames [][]byte) { s.call(fmt.Sprintf("received %d", len(frames)))() }

func (s *strict) Ended(err error) {
	s.call("ended")()
	if !sdk.CodeOf(err).Valid() {
		s.t.Fatalf("%v", err)
	}
	s.ended = err
}

// dispatching makes a transport with n endpoints, each with ten frames out.
func dispatching(t testing.TB, n int) (*Transport, *dispatcher, []*strict) {
	tr := newTransport(context.Background(), "x", nil)
	tr.limits = sdk.Limits{MaxFrame: 100}.WithDefaults()
	l := &hostLink{carrier: &nowhere{}}
	tr.mu.link = l
	var handlers []*strict
	for range n {
		h := &strict{t: t, sent: 10}
		e, err := tr.newEndpoint(l, sdk.UseFrames, h)
		if err != nil {
			t.Fatal(err)
		}
		if err := e.settle("test"); err != nil {
			t.Fatal(err)
		}
		for id := range uint64(10) {
			if _, err := e.Send([]sdk.Frame{{ID: id + 1}}, false); err != nil {
				t.Fatal(err)
			}
		}
		handlers = append(handlers, h)
	}
	return tr, &dispatcher{t: tr}, handlers
}

func completions(runs ...link.Run) []byte {
	var b []byte
	for _, r := range runs {
		b = binary.LittleEndian.AppendUint64(b, r.First)
		b = binary.LittleEndian.AppendUint32(b, r.Count)
		b = append(b, r.Outcome, r.Code, 0, 0)
	}
	return b
}

func TestDispatchGroups(t *testing.T) {
	tr, d, hs := dispatching(t, 2)
	one := []byte("x")
	err := d.handle([]link.Record{
		{Type: link.Received, Endpoint: 1, Payload: one},
		{Type: link.Received, Endpoint: 2, Payload: one},
		{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 3, Count: 2, Outcome: 2})},
		{Type: link.Received, Endpoint: 1, Payload: one},
		{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 2, Outcome: 1, Code: 5}, link.Run{First: 9, Count: 1, Outcome: 2})},
		{Type: link.Ended, Endpoint: 1, ID: uint64(sdk.Unavailable), Payload: []byte("lost")},
		{Type: link.Received, Endpoint: 1, Payload: one},
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(hs[0].calls); got != "[completed 5 received 2 ended]" {
		t.Error(got)
	}
	if got := fmt.Sprint(hs[1].calls); got != "[received 1]" {
		t.Error(got)
	}
	if !errors.Is(hs[0].ended, sdk.Unavailable) || hs[0].ended.Error() != "plugin x: lost" {
		t.Error(hs[0].ended)
	}
	if tr.Dropped() != 1 {
		t.Errorf("dropped %d", tr.Dropped())
	}
}

// TestDispatchDrops is what a plugin may say without meaning anything.
func TestDispatchDrops(t *testing.T) {
	all := completions(link.Run{First: 1, Count: 10, Outcome: 3, Code: 1})
	tests := []struct {
		name string
		recs []link.Record
		want uint64
		call string
	}{
		{"frame of an endpoint never opened", []link.Record{{Type: link.Received, Endpoint: 9}}, 1, "[]"},
		{"outcome of an endpoint never opened", []link.Record{{Type: link.Complete, Endpoint: 9, Payload: all}}, 1, "[]"},
		{"end of an endpoint never opened", []link.Record{{Type: link.Ended, Endpoint: 0}}, 1, "[]"},
		{"outcomes twice", []link.Record{{Type: link.Complete, Endpoint: 1, Payload: all}, {Type: link.Complete, Endpoint: 1, Payload: all}}, 10, "[completed 10]"},
		{"outcomes twice in one record", []link.Record{{Type: link.Complete, Endpoint: 1, Payload: append(all, all...)}}, 10, "[completed 10]"},
		{"outcome of frame 0", []link.Record{{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{Count: 1, Outcome: 2})}}, 1, "[]"},
		{"outcomes of frames never sent", []link.Record{{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 8, Count: 60000, Outcome: 2})}}, 59997, "[completed 3]"},
		{"ended twice", []link.Record{{Type: link.Ended, Endpoint: 1, ID: 1}, {Type: link.Ended, Endpoint: 1, ID: 1}}, 1, "[ended]"},
		{"pong without ping", []link.Record{{Type: link.Pong, ID: 77}}, 1, "[]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tr, d, hs := dispatching(t, 1)
			if err := d.handle(tt.recs); err != nil {
				t.Fatal(err)
			}
			if tr.Dropped() != tt.want {
				t.Errorf("dropped %d, want %d", tr.Dropped(), tt.want)
			}
			if got := fmt.Sprint(hs[0].calls); got != tt.call {
				t.Errorf("calls %s, want %s", got, tt.call)
			}
		})
	}
}

// TestDispatchViolations is what ends the instance. What came before is
// handed over.
func TestDispatchViolations(t *testing.T) {
	tests := map[string]link.Record{
		"send":            {Type: link.Send, Endpoint: 1},
		"close":           {Type: link.CloseEndpoint, Endpoint: 1},
		"ping":            {Type: link.Ping},
		"files":           {Type: link.Files},
		"long frame":      {Type: link.Received, Endpoint: 1, Payload: make([]byte, 101)},
		"long text":       {Type: link.Ended, Endpoint: 1, Payload: make([]byte, 5000)},
		"cut run":         {Type: link.Complete, Endpoint: 1, Payload: make([]byte, 15)},
		"outcome 0":       {Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 1})},
		"outcome 4":       {Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 1, Outcome: 4})},
		"code 17":         {Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 1, Outcome: 1, Code: 17})},
		"too many":        {Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 1 << 31, Outcome: 2})},
		"beyond the end":  {Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1<<64 - 2, Count: 9, Outcome: 2})},
		"of no endpoint":  {Type: link.Complete, Endpoint: 5, Payload: make([]byte, 15)},
		"frame of nobody": {Type: link.Received, Endpoint: 5, Payload: make([]byte, 101)},
	}
	for name, rec := range tests {
		t.Run(name, func(t *testing.T) {
			_, d, hs := dispatching(t, 1)
			err := d.handle([]link.Record{{Type: link.Received, Endpoint: 1}, rec, {Type: link.Received, Endpoint: 1}})
			if !errors.Is(err, link.ErrViolation) {
				t.Fatal(err)
			}
			if got := fmt.Sprint(hs[0].calls); got != "[received 1]" {
				t.Error(got)
			}
		})
	}
}

// TestDispatchAllocates holds the hot path to nothing per frame.
func TestDispatchAllocates(t *testing.T) {
	_, d, hs := dispatching(t, 1)
	e := d.t.endpoint(1)
	id := uint64(10)
	frames := make([]sdk.Frame, 50)
	data := make([]byte, 64)
	recs := make([]link.Record, 0, 60)
	handler := &counter{}
	e.h = handler
	payload := make([]byte, 0, 64)
	got := testing.AllocsPerRun(100, func() {
		for i := range frames {
			frames[i] = sdk.Frame{ID: id + uint64(i) + 1, Data: data}
		}
		if n, err := e.Send(frames, true); n != len(frames) || err != nil {
			t.Fatal(n, err)
		}
		payload = payload[:0]
		payload = binary.LittleEndian.AppendUint64(payload, id+1)
		payload = binary.LittleEndian.AppendUint32(payload, 50)
		payload = append(payload, 2, 0, 0, 0)
		recs = append(recs[:0], link.Record{Type: link.Complete, Endpoint: 1, Payload: payload})
		for range 50 {
			recs = append(recs, link.Record{Type: link.Received, Endpoint: 1, Payload: data})
		}
		if err := d.handle(recs); err != nil {
			t.Fatal(err)
		}
		id += 50
	})
	if got > 2 {
		t.Errorf("%v allocations for 50 frames each way", got)
	}
	if handler.frames == 0 || handler.frames != handler.results {
		t.Errorf("%+v %v", handler, hs[0].calls)
	}
}

type counter struct{ frames, results int }

func (c *counter) Completed(cs []sdk.Completion) { c.results += len(cs) }
func (c *counter) Received(fs [][]byte)          { c.frames += len(fs) }
func (c *counter) Ended(error)                   {}

// FuzzDispatch feeds arbitrary records, in batches. The strict handlers check
// the contract.
func FuzzDispatch(f *testing.F) {
	record := func(typ link.Type, endpoint, id byte, payload []byte) []byte {
		return append([]byte{byte(typ), endpoint, id, byte(len(payload))}, payload...)
	}
	run := completions(link.Run{First: 1, Count: 3, Outcome: 2})
	f.Add(record(link.Received, 1, 0, []byte("frame")))
	f.Add(append(record(link.Complete, 1, 0, run), record(link.Complete, 1, 0, run)...))
	f.Add(append(record(link.Ended, 2, 3, []byte("gone")), record(link.Received, 2, 0, nil)...))
	f.Add(append(record(link.Pong, 0, 1, nil), record(link.Files, 0, 0, nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		tr, d, hs := dispatching(t, 3)
		tr.endpoint(2).Close()
		var recs []link.Record
		for len(b) >= 4 {
			n := min(int(b[3]), len(b)-4)
			recs = append(recs, link.Record{Type: link.Type(b[0] & 15), Endpoint: uint64(b[1] & 7), ID: uint64(b[2]), Payload: b[4 : 4+n]})
			flush := b[0]&0x80 != 0
			b = b[4+n:]
			if flush || len(b) < 4 {
				if err := d.handle(recs); err != nil {
					if !errors.Is(err, link.ErrViolation) {
						t.Fatal(err)
					}
					break
				}
				recs = recs[:0]
			}
		}
		tr.setReason(tr.linkReason(link.ErrClosed))
		tr.endEndpoints()
		for i, h := range hs {
			if h.ended == nil && i < 3 {
				t.Fatalf("endpoint %d has no end", i+1)
			}
		}
	})
}
