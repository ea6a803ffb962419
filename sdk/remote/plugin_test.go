//go:build linux

package remote

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// TestDiesAtEachStep kills the plugin inside each call, with one endpoint up.
func TestDiesAtEachStep(t *testing.T) {
	calls := []struct {
		step string
		call func(context.Context, *Transport) error
	}{
		{"configure", func(ctx context.Context, tr *Transport) error {
			_, err := tr.Configure(ctx, sdk.Config{})
			return err
		}},
		{"health", func(ctx context.Context, tr *Transport) error { return tr.Health(ctx) }},
		{"paths", func(_ context.Context, tr *Transport) error { _, err := tr.Paths(nil); return err }},
		{"probe", func(ctx context.Context, tr *Transport) error { return tr.Probe(ctx, sdk.Target{}) }},
		{"drain", func(ctx context.Context, tr *Transport) error { return tr.Drain(ctx) }},
		{"register", func(ctx context.Context, tr *Transport) error {
			_, err := tr.Register(ctx, sdk.Region{
				Capability: sdk.Capability{1}, Kind: sdk.DeviceMemory, Length: 1, Allocation: 1,
				HandleKind: sdk.FabricHandle, Handle: make([]byte, sdk.HandleBytes),
			})
			return err
		}},
		{"deregister", func(ctx context.Context, tr *Transport) error { return tr.Deregister(ctx, sdk.Capability{1}) }},
		{"announce", func(ctx context.Context, tr *Transport) error {
			return tr.Announce(ctx, sdk.RemoteRegion{Provider: sdk.Incarnation{1}, Kind: sdk.HostMemory, Length: 1})
		}},
		{"withdraw", func(ctx context.Context, tr *Transport) error {
			return tr.Withdraw(ctx, sdk.Incarnation{1}, sdk.Capability{1})
		}},
		{"set keys", func(ctx context.Context, tr *Transport) error { return tr.SetKeys(ctx, sdk.Keys{}) }},
		{"connect start", dialRaw}, {"connect offer", dialRaw}, {"connect answer", dialRaw},
		{"accept", func(ctx context.Context, tr *Transport) error {
			_, _, err := tr.Accept(ctx, sdk.Target{}, nil, newWaiting(nil))
			return err
		}},
		{"close", func(ctx context.Context, tr *Transport) error { return tr.Close(ctx) }},
	}
	for _, c := range calls {
		t.Run(c.step, func(t *testing.T) {
			p := &raw{describe: honest()}
			p.describe.Features = append(p.describe.Features, uint32(sdk.FeatureMove))
			tr := openRaw(t, p)
			h := newWaiting(t)
			if _, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, h); err != nil {
				t.Fatal(err)
			}
			p.dieAt = c.step
			err := c.call(testContext(t), tr)
			if !errors.Is(err, sdk.PluginExited) || !strings.Contains(err.Error(), "plugin raw") {
				t.Errorf("%v", err)
			}
			if err := h.await(t); !errors.Is(err, sdk.PluginExited) && c.step != "close" {
				t.Errorf("ended: %v", err)
			}
			<-tr.Done()
			if tr.Err() == nil {
				t.Error("no reason")
			}
			if _, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, h); err == nil {
				t.Error("connected to the dead")
			}
		})
	}
	for _, step := range []string{"describe", "open link"} {
		t.Run(step, func(t *testing.T) {
			tr, host := startRaw(t, &raw{dieAt: step})
			if err := tr.Open(testContext(t), host, nil); !errors.Is(err, sdk.PluginExited) {
				t.Errorf("%v", err)
			}
			<-tr.Done()
		})
	}
}

func dialRaw(ctx context.Context, tr *Transport) error {
	_, err := tr.Connect(ctx, sdk.Target{}, noAnswer, newWaiting(nil))
	return err
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name string
		edit func(*pb.DescribeResponse)
		want string
	}{
		{"no name", func(d *pb.DescribeResponse) { d.Name = "" }, "name of 0 bytes"},
		{"name", func(d *pb.DescribeResponse) { d.Name = "A/b" }, `name "A/b"`},
		{"version", func(d *pb.DescribeResponse) { d.Version = strings.Repeat("v", 5000) }, "version of 5000 bytes"},
		{"schema", func(d *pb.DescribeResponse) { d.ConfigSchema = make([]byte, 300<<10) }, "schema of 307200 bytes"},
		{"no schema", func(d *pb.DescribeResponse) { d.ConfigSchema = []byte("{") }, "not JSON"},
		{"features", func(d *pb.DescribeResponse) { d.Features = make([]uint32, 65) }, "65 features"},
		{"feature 0", func(d *pb.DescribeResponse) { d.Features = []uint32{0} }, "feature 0"},
		{"frames", func(d *pb.DescribeResponse) { d.Limits.MaxFrame = 1 << 30 }, "frames of 1073741824 bytes"},
		{"in flight", func(d *pb.DescribeResponse) { d.Limits.InflightFrames = 1<<32 - 1 }, "in flight"},
		{"kind of memory", func(d *pb.DescribeResponse) {
			d.Features, d.Move = []uint32{4}, &pb.MoveLimits{Remote: []uint32{1, 256}}
		}, "memory-kind-255"},
		{"kinds of memory", func(d *pb.DescribeResponse) {
			d.Features, d.Move = []uint32{4}, &pb.MoveLimits{Local: make([]uint32, 65)}
		}, "65 kinds"},
		{"one kind twice", func(d *pb.DescribeResponse) {
			d.Features, d.Move = []uint32{4}, &pb.MoveLimits{Local: []uint32{1, 1}}
		}, "listed twice"},
		{"large ops", func(d *pb.DescribeResponse) {
			d.Features, d.Move = []uint32{4}, &pb.MoveLimits{MaxOp: 1<<30 + 1}
		}, "MaxOp 1073741825"},
		{"ops in flight", func(d *pb.DescribeResponse) {
			d.Features, d.Move = []uint32{4}, &pb.MoveLimits{InflightBytes: 1<<32 - 1}
		}, "bytes in flight"},
		{"lanes", func(d *pb.DescribeResponse) {
			d.Features, d.Move = []uint32{4}, &pb.MoveLimits{Parallel: 9}
		}, "Parallel 9"},
		{"listeners", func(d *pb.DescribeResponse) { d.Listeners = make([]*pb.ListenerSpec, 17) }, "17 listeners"},
		{"listener", func(d *pb.DescribeResponse) { d.Listeners = []*pb.ListenerSpec{{}} }, "no name of its own"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := &raw{describe: honest()}
			tt.edit(p.describe)
			tr, host := startRaw(t, p)
			err := tr.Open(testContext(t), host, nil)
			if !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "plugin raw") {
				t.Errorf("%v", err)
			}
			<-tr.Done()
			if tr.Describe().Name != "" {
				t.Error("a description that was refused is used")
			}
		})
	}
	t.Run("contract", func(t *testing.T) {
		p := &raw{describe: honest()}
		p.describe.Contract = 99
		tr, host := startRaw(t, p)
		err := tr.Open(testContext(t), host, nil)
		if sdk.CodeOf(err) != sdk.InvalidArgument || !strings.Contains(err.Error(), "contract version 99, this host has 1: install") {
			t.Errorf("%v: %v", sdk.CodeOf(err), err)
		}
	})
	t.Run("carrier", func(t *testing.T) {
		tr, host := startRaw(t, &raw{openLink: &pb.OpenLinkResponse{Carrier: "ring"}})
		if err := tr.Open(testContext(t), host, nil); !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), `"ring"`) {
			t.Errorf("%v", err)
		}
	})
	t.Run("link", func(t *testing.T) {
		tr, host := startRaw(t, &raw{openLink: &pb.OpenLinkResponse{Error: &pb.Error{Code: 999, Message: "odd"}}})
		if err := tr.Open(testContext(t), host, nil); !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), "odd") {
			t.Errorf("%v", err)
		}
	})
	t.Run("dead link", func(t *testing.T) {
		tr, host := startRaw(t, &raw{silent: true})
		ctx, cancel := context.WithTimeout(testContext(t), 50*time.Millisecond)
		defer cancel()
		if err := tr.Open(ctx, host, nil); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	})
}

// TestLies is a plugin that says on the link what it must not say, to a host
// with one endpoint. (Scenario 60.)
func TestLies(t *testing.T) {
	pass := map[string][]link.Record{
		"unknown endpoint": {{Type: link.Received, Endpoint: 12345, Payload: []byte("x")}},
		"outcomes twice": {
			{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 1, Outcome: 2})},
			{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 1, Count: 1, Outcome: 2})},
		},
		"frame never sent": {{Type: link.Complete, Endpoint: 1, Payload: completions(link.Run{First: 50, Count: 1, Outcome: 2})}},
	}
	for name, recs := range pass {
		t.Run(name, func(t *testing.T) {
			p := &raw{}
			tr := openRaw(t, p)
			h := newWaiting(t)
			ep, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, h)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ep.Send([]sdk.Frame{{ID: 1}}, false); err != nil {
				t.Fatal(err)
			}
			p.say(recs...)
			if err := tr.Health(testContext(t)); err != nil {
				t.Error(err)
			}
			if tr.Dropped() != 1 {
				t.Errorf("dropped %d", tr.Dropped())
			}
		})
	}
	fatal := map[string]link.Record{
		"a frame over the limit": {Type: link.Received, Endpoint: 1, Payload: make([]byte, 1001)},
		"type 1":                 {Type: link.Send, Endpoint: 1},
		"completions":            {Type: link.Complete, Endpoint: 1, Payload: []byte("rubbish")},
	}
	for name, rec := range fatal {
		t.Run(name, func(t *testing.T) {
			p := &raw{}
			tr := openRaw(t, p)
			h := newWaiting(t)
			if _, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, h); err != nil {
				t.Fatal(err)
			}
			p.say(link.Record{Type: link.Received, Endpoint: 1, Payload: []byte("before")}, rec)
			if err := h.await(t); !errors.Is(err, sdk.PluginExited) || !errors.Is(err, link.ErrViolation) {
				t.Errorf("%v", err)
			}
			<-tr.Done()
			tr.Abort(errors.New("killed by the watchdog"))
			if err := tr.Err(); !strings.Contains(err.Error(), "broke the rules") || !strings.Contains(err.Error(), "plugin raw") {
				t.Errorf("%v", err)
			}
			if fmt.Sprint(h.got) != "[before]" {
				t.Errorf("%q", h.got)
			}
		})
	}
}

func TestLiesInCalls(t *testing.T) {
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	p := &raw{}
	tr := openRaw(t, p)
	ctx := testContext(t)
	for _, paths := range [][]string{many, {""}, {strings.Repeat("x", 1000)}, {"a", "a"}} {
		p.paths = &pb.PathsResponse{Paths: paths}
		if _, err := tr.Paths(nil); !errors.Is(err, sdk.Refused) {
			t.Errorf("%d paths: %v", len(paths), err)
		}
	}
	p.setup = &pb.ConfigureResponse{Attributes: map[string]string{"a": strings.Repeat("x", 20<<10)}}
	if _, err := tr.Configure(ctx, sdk.Config{}); !errors.Is(err, sdk.Refused) {
		t.Errorf("%v", err)
	}
	p.accept = &pb.AcceptResponse{Answer: make([]byte, 70_000)}
	if _, _, err := tr.Accept(ctx, sdk.Target{}, nil, newWaiting(t)); !errors.Is(err, sdk.Refused) {
		t.Errorf("%v", err)
	}
	for name, steps := range map[string][]*pb.ConnectResponse{
		"nothing":      nil,
		"second offer": {offerStep(nil), offerStep(nil)},
		"long offer":   {offerStep(make([]byte, 70_000))},
		"empty step":   {{}},
		"code":         {doneStep(&pb.Error{Code: 1 << 31})},
	} {
		p.connect = func(s grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse]) error {
			for _, step := range steps {
				if err := s.Send(step); err != nil {
					return err
				}
			}
			if len(steps) > 1 {
				<-s.Context().Done()
			}
			return nil
		}
		if _, err := tr.Connect(ctx, sdk.Target{}, noAnswer, newWaiting(t)); !errors.Is(err, sdk.Refused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := tr.Health(ctx); err != nil {
		t.Error(err)
	}
	// Whatever the plugin may have made in those calls it was told to end.
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.closes) != 6 {
		t.Errorf("told to end %v", p.closes)
	}
}

// TestAbortDrains: what the plugin had written before it died comes first,
// even if somebody still holds its end of the socket.
func TestAbortDrains(t *testing.T) {
	p := &raw{}
	tr := openRaw(t, p)
	h := newWaiting(t)
	h.block = make(chan struct{})
	if _, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, h); err != nil {
		t.Fatal(err)
	}
	// Past the carrier, so that all of it is in the socket when write returns.
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint(i))
		if _, err := p.socket.Write(received(1, want[i])); err != nil {
			t.Fatal(err)
		}
	}
	tr.Abort(errors.New("killed: signal 9"))
	close(h.block)
	err := h.await(t)
	if !errors.Is(err, sdk.PluginExited) || !strings.Contains(err.Error(), "killed: signal 9") {
		t.Errorf("%v", err)
	}
	if got := strings.Join(h.got, " "); got != strings.Join(want, " ") {
		t.Errorf("got %s", got)
	}
}

// received encodes one record.
func received(endpoint uint64, payload string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))
	b = append(b, byte(link.Received), 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, endpoint)
	return append(append(b, make([]byte, 8)...), payload...)
}

// TestNeverEnds: a plugin that keeps an endpoint that was closed is sick.
func TestNeverEnds(t *testing.T) {
	tr := openRaw(t, &raw{})
	ep, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, newWaiting(t))
	if err != nil {
		t.Fatal(err)
	}
	ep.Close()
	if err := tr.Health(testContext(t)); err != nil {
		t.Error(err)
	}
	if err := tr.overdue(time.Now().Add(time.Minute)); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "endpoint 1") {
		t.Errorf("%v", err)
	}
}

// TestAbandonWaits: once Connect has failed no Handler method runs.
func TestAbandonWaits(t *testing.T) {
	p := &raw{}
	h := newWaiting(t)
	h.block = make(chan struct{})
	p.connect = func(s grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse]) error {
		req, err := s.Recv()
		if err != nil {
			return err
		}
		p.say(link.Record{Type: link.Received, Endpoint: req.GetStart().GetEndpoint(), Payload: []byte("early")})
		return s.Send(doneStep(&pb.Error{Code: uint32(sdk.Unavailable), Message: "no"}))
	}
	tr := openRaw(t, p)
	failed := make(chan error)
	go func() {
		_, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, h)
		failed <- err
	}()
	// The early frame may or may not be inside the handler by now; either way
	// nothing is after Connect.
	close(h.block)
	if err := <-failed; !errors.Is(err, sdk.Unavailable) {
		t.Error(err)
	}
	h.mu.Lock()
	n := len(h.got)
	h.mu.Unlock()
	if err := tr.Health(testContext(t)); err != nil {
		t.Error(err)
	}
	if len(h.got) != n || h.ended != nil {
		t.Errorf("%q, %v", h.got, h.ended)
	}
}

func TestNotOpen(t *testing.T) {
	tr, host := startRaw(t, &raw{})
	_ = host.Close()
	if _, err := tr.Connect(testContext(t), sdk.Target{}, noAnswer, newWaiting(t)); !errors.Is(err, sdk.InvalidArgument) {
		t.Errorf("%v", err)
	}
	if err := tr.Close(testContext(t)); err != nil {
		t.Error(err)
	}
	<-tr.Done()
}
