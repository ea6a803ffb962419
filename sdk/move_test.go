//go:build linux

package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// moves is an echo that moves memory, as far as the boundary can tell.
type moves struct {
	*echo
	features []sdk.Feature
	limits   sdk.MoveLimits
	fail     error // of Register and Announce
	attrs    sdk.Attributes
	stuck    bool          // Deregister and Withdraw never finish
	slow     chan struct{} // Register goes on when it is closed, or nil

	mu        sync.Mutex
	regions   []sdk.Region
	contents  []string
	announced []sdk.RemoteRegion
	gone      []sdk.Capability
	withdrawn []sdk.Incarnation
	targets   []sdk.Target
}

func newMoves(features ...sdk.Feature) *moves {
	return &moves{echo: newEcho(), features: features, attrs: sdk.Attributes{"rkey": "17"}}
}

func (m *moves) Describe() sdk.Description {
	d := m.echo.Describe()
	d.Features, d.Move = m.features, m.limits
	return d
}

func (m *moves) Register(_ context.Context, r sdk.Region) (sdk.Attributes, error) {
	content := ""
	if r.File != nil {
		b, err := io.ReadAll(io.NewSectionReader(r.File, int64(r.Offset), int64(r.Length)))
		if err != nil {
			return nil, err
		}
		content = string(b)
		_ = r.File.Close()
		r.File = nil
	}
	if m.slow != nil {
		<-m.slow
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.regions = append(m.regions, r)
	m.contents = append(m.contents, content)
	return m.attrs, m.fail
}

func (m *moves) release(ctx context.Context) error {
	if m.stuck {
		<-ctx.Done()
		return sdk.Errorf(sdk.Busy, "3 ops are left")
	}
	return nil
}

func (m *moves) Deregister(ctx context.Context, c sdk.Capability) error {
	m.mu.Lock()
	m.gone = append(m.gone, c)
	m.mu.Unlock()
	return m.release(ctx)
}

func (m *moves) Announce(_ context.Context, r sdk.RemoteRegion) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.announced = append(m.announced, r)
	return m.fail
}

func (m *moves) Withdraw(ctx context.Context, provider sdk.Incarnation, c sdk.Capability) error {
	m.mu.Lock()
	m.gone, m.withdrawn = append(m.gone, c), append(m.withdrawn, provider)
	m.mu.Unlock()
	return m.release(ctx)
}

func (m *moves) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	m.mu.Lock()
	m.targets = append(m.targets, t)
	m.mu.Unlock()
	answer, err := x(ctx, nil)
	if err != nil {
		return nil, err
	}
	if t.Use == sdk.UseMemory && string(answer) != "frame" {
		t.Path = pathQuiet
	}
	return m.start(t.Path, h), nil
}

func (m *moves) Accept(_ context.Context, t sdk.Target, _ []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	m.mu.Lock()
	m.targets = append(m.targets, t)
	m.mu.Unlock()
	return m.start(pathQuiet, h), nil, nil
}

// regionFile makes a file with some content.
func regionFile(t *testing.T, content string) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "region")
	if err == nil {
		_, err = f.WriteString(content)
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func hostRegion(f *os.File, offset, length uint64) sdk.Region {
	return sdk.Region{
		Capability: sdk.Capability{1, 2, 15: 9}, Kind: sdk.HostMemory, Base: 1 << 40, Length: length,
		Writable: true, File: f, Offset: offset,
	}
}

func deviceRegion() sdk.Region {
	return sdk.Region{
		Capability: sdk.Capability{7}, Kind: sdk.DeviceMemory, Base: 1 << 63, Length: 4096, Device: 3,
		DeviceUUID: [16]byte{5, 15: 6}, Offset: 8192, HandleKind: sdk.FabricHandle,
		Handle: bytes.Repeat([]byte{0xfe}, sdk.HandleBytes), Allocation: 1 << 21,
	}
}

func TestMoveLimitsCross(t *testing.T) {
	for _, limits := range []sdk.MoveLimits{{}, {
		MaxOp: 1 << 30, Inflight: 3, InflightBytes: 1 << 30, Local: []sdk.MemoryKind{sdk.DeviceMemory},
		Remote: []sdk.MemoryKind{sdk.DeviceMemory, sdk.HostMemory}, NeedsFlush: true, TargetWrites: true, Parallel: 8,
	}} {
		m := newMoves(sdk.FeatureMove)
		m.limits = limits
		b := newBoundary(t, m, true)
		if got := b.Describe().Move; !reflect.DeepEqual(got, limits.WithDefaults()) {
			t.Errorf("%+v arrived as %+v", limits, got)
		}
	}
}

func TestRegionsCross(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		m := newMoves(sdk.FeatureMove)
		b := newBoundary(t, m, socket)
		ctx := testContext(t)
		dev := deviceRegion()
		attrs, err := b.Register(ctx, dev)
		if err != nil || !reflect.DeepEqual(attrs, m.attrs) {
			t.Fatalf("%v, %v", attrs, err)
		}
		if !reflect.DeepEqual(m.regions[0], dev) {
			t.Errorf("sent %+v\ncame %+v", dev, m.regions[0])
		}
		f := regionFile(t, "0123456789")
		host := hostRegion(f, 3, 4)
		_, err = b.Register(ctx, host)
		if _, open := f.Stat(); open == nil {
			t.Error("the host's copy of the file is open")
		}
		if !socket {
			if !errors.Is(err, sdk.Unsupported) || len(m.regions) != 1 {
				t.Errorf("a file over gRPC: %v", err)
			}
			return
		}
		host.File = nil
		if err != nil || m.contents[1] != "3456" || !reflect.DeepEqual(m.regions[1], host) {
			t.Errorf("%v: %+v came with %q", err, m.regions[1], m.contents[1])
		}
	})
}

// Many registrations at once get each its own file, also more than may wait.
func TestEachRegionGetsItsFile(t *testing.T) {
	m := newMoves(sdk.FeatureMove)
	b := newBoundary(t, m, true)
	ctx := testContext(t)
	var all sync.WaitGroup
	for i := range 200 {
		f := regionFile(t, strings.Repeat(string(rune('A'+i%26)), 300))
		r := hostRegion(f, uint64(i), 1)
		r.Capability[0] = byte('A' + i%26)
		all.Go(func() {
			if _, err := b.Register(ctx, r); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(m.regions) != 200 {
		t.Fatalf("%d regions", len(m.regions))
	}
	for i, r := range m.regions {
		if m.contents[i] != string(rune(r.Capability[0])) {
			t.Fatalf("region %v came with %q", r.Capability, m.contents[i])
		}
	}
}

func TestMalformedRegionsStayHere(t *testing.T) {
	m := newMoves(sdk.FeatureMove)
	b := newBoundary(t, m, true)
	for name, edit := range map[string]func(r *sdk.Region){
		"no capability":      func(r *sdk.Region) { r.Capability = sdk.Capability{} },
		"no kind":            func(r *sdk.Region) { r.Kind = 0 },
		"unknown kind":       func(r *sdk.Region) { r.Kind = 3 },
		"no length":          func(r *sdk.Region) { r.Length = 0 },
		"base wraps":         func(r *sdk.Region) { r.Base = 1<<64 - 4096 },
		"offset wraps":       func(r *sdk.Region) { r.Offset = 1<<64 - 1 },
		"over the export":    func(r *sdk.Region) { r.Offset = 1<<21 - 4095 },
		"short handle":       func(r *sdk.Region) { r.Handle = r.Handle[1:] },
		"no handle":          func(r *sdk.Region) { r.HandleKind, r.Handle = sdk.NoHandle, nil },
		"unknown handle":     func(r *sdk.Region) { r.HandleKind = 4 },
		"no file":            func(r *sdk.Region) { r.HandleKind, r.Handle = sdk.FileHandle, nil },
		"host with a handle": func(r *sdk.Region) { r.Kind = sdk.HostMemory },
		"no device":          func(r *sdk.Region) { r.Device = -1 },
	} {
		r := deviceRegion()
		edit(&r)
		if _, err := b.Register(testContext(t), r); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(m.regions) != 0 {
		t.Errorf("%d regions arrived", len(m.regions))
	}
}

func TestRemoteRegionsCross(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		m := newMoves(sdk.FeatureMove)
		b := newBoundary(t, m, socket)
		ctx := testContext(t)
		r := sdk.RemoteRegion{
			Provider: sdk.Incarnation{3, 15: 4}, Instance: 12, Capability: sdk.Capability{8}, Kind: sdk.DeviceMemory,
			Base: 77, Length: 1 << 40, Writable: true, Attributes: sdk.Attributes{"handle": "x"}, Version: 5,
		}
		older := r
		older.Capability = sdk.Capability{}
		for _, r := range []sdk.RemoteRegion{r, older} {
			if err := b.Announce(ctx, r); err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(m.announced, []sdk.RemoteRegion{r, older}) {
			t.Errorf("came %+v", m.announced)
		}
		for name, edit := range map[string]func(r *sdk.RemoteRegion){
			"no provider": func(r *sdk.RemoteRegion) { r.Provider = sdk.Incarnation{} },
			"kind":        func(r *sdk.RemoteRegion) { r.Kind = 9 },
			"length":      func(r *sdk.RemoteRegion) { r.Length = 0 },
			"wrap":        func(r *sdk.RemoteRegion) { r.Base = 1<<64 - 1 },
			"attributes":  func(r *sdk.RemoteRegion) { r.Attributes = sdk.Attributes{"x": strings.Repeat("x", 17<<10)} },
		} {
			bad := r
			edit(&bad)
			if err := b.Announce(ctx, bad); !errors.Is(err, sdk.InvalidArgument) || len(m.announced) != 2 {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := b.Withdraw(ctx, r.Provider, r.Capability); err != nil {
			t.Error(err)
		}
		if err := b.Withdraw(ctx, r.Provider, sdk.Capability{}); err != nil {
			t.Error(err)
		}
		if err := b.Deregister(ctx, sdk.Capability{9}); err != nil {
			t.Error(err)
		}
		if want := []sdk.Capability{{8}, {}, {9}}; !slices.Equal(m.gone, want) || !slices.Equal(m.withdrawn, []sdk.Incarnation{r.Provider, r.Provider}) {
			t.Errorf("%v of %v", m.gone, m.withdrawn)
		}
		m.fail = sdk.Errorf(sdk.Busy, "registered")
		if err := b.Announce(ctx, r); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "plugin test: announce: registered") {
			t.Error(err)
		}
		if _, err := b.Register(ctx, deviceRegion()); !errors.Is(err, sdk.Busy) {
			t.Error(err)
		}
		m.fail, m.attrs = nil, sdk.Attributes{"x": strings.Repeat("x", 17<<10)}
		if _, err := b.Register(ctx, deviceRegion()); !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), "bytes of attributes") {
			t.Error(err)
		}
	})
}

// What does not end in time is Busy, and says what is left; so it is when the
// caller just gives up.
func TestReleasesEndInTime(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		t.Parallel()
		m := newMoves(sdk.FeatureMove)
		m.stuck = true
		b := newBoundary(t, m, socket)
		for name, call := range map[string]func(context.Context) error{
			"deregister": func(ctx context.Context) error { return b.Deregister(ctx, sdk.Capability{1}) },
			"withdraw": func(ctx context.Context) error {
				return b.Withdraw(ctx, sdk.Incarnation{1}, sdk.Capability{1})
			},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
				if err := call(ctx); !errors.Is(err, sdk.Busy) || !strings.Contains(err.Error(), "3 ops are left") {
					t.Error(err)
				}
				cancel()
				if err := call(ctx); sdk.CodeOf(err) != sdk.Busy {
					t.Errorf("given up: %v", err)
				}
			})
		}
	})
}

// A region whose registration took too long for the host may still be registered
// afterwards, and is not forgotten before it is.
func TestNoDeregisterOvertakesRegister(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		m := newMoves(sdk.FeatureMove)
		m.slow = make(chan struct{})
		b := newBoundary(t, m, socket)
		r := deviceRegion()
		short := func(call func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
			defer cancel()
			return call(ctx)
		}
		if err := short(func(ctx context.Context) error { _, err := b.Register(ctx, r); return err }); !errors.Is(err, sdk.DeadlineExceeded) {
			t.Fatalf("register: %v", err)
		}
		deregister := func(ctx context.Context) error { return b.Deregister(ctx, r.Capability) }
		if err := short(deregister); !errors.Is(err, sdk.Busy) {
			t.Errorf("deregister meanwhile: %v", err)
		}
		close(m.slow)
		if err := deregister(context.Background()); err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.regions) != 1 || len(m.gone) != 1 {
			t.Errorf("registered %d times, forgotten %d times", len(m.regions), len(m.gone))
		}
	})
}

// An endpoint for memory needs a mover, one for frames a notifier.
func TestUsesNeedTheirFeature(t *testing.T) {
	for _, tt := range []struct {
		has, lacks sdk.Feature
		use, no    sdk.Use
	}{
		{sdk.FeatureNotify, sdk.FeatureMove, sdk.UseFrames, sdk.UseMemory},
		{sdk.FeatureMove, sdk.FeatureNotify, sdk.UseMemory, sdk.UseFrames},
	} {
		m := newMoves(tt.has)
		m.limits.Parallel = 2
		b := newBoundary(t, m, true)
		ctx := testContext(t)
		if _, err := b.Paths(sdk.Attributes{"extra": "x"}); err != nil {
			t.Errorf("%v: paths: %v", tt.has, err)
		}
		target := sdk.Target{Path: "main", Use: tt.no}
		_, err := b.Connect(ctx, target, answering(""), newRecorder())
		_, _, err2 := b.Accept(ctx, target, nil, newRecorder())
		for _, err := range []error{err, err2} {
			if !errors.Is(err, sdk.Unsupported) || !strings.Contains(err.Error(), tt.lacks.String()) {
				t.Errorf("%v for %v: %v", tt.has, tt.no, err)
			}
		}
		target.Use, target.Lane = tt.use, 2
		if _, err := b.Connect(ctx, target, answering(""), newRecorder()); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("lane 2: %v", err)
		}
		target.Lane = int(tt.use) // 0 for frames
		if _, err := b.Connect(ctx, target, answering(""), newRecorder()); err != nil {
			t.Error(err)
		}
		if _, _, err := b.Accept(ctx, target, nil, newRecorder()); err != nil {
			t.Error(err)
		}
		if len(m.targets) != 2 || m.targets[0].Use != tt.use || m.targets[1].Lane != target.Lane {
			t.Errorf("came %+v", m.targets)
		}
		_, err = b.Register(ctx, deviceRegion())
		if tt.has == sdk.FeatureNotify && !errors.Is(err, sdk.Unsupported) {
			t.Errorf("registered: %v", err)
		}
	}
}

// Ops have a limit of their own, the passive end sends none, and a frame that
// the transport hands over ends the endpoint.
func TestEndpointsForMemory(t *testing.T) {
	bothCarriers(t, func(t *testing.T, socket bool) {
		m := newMoves(sdk.FeatureMove)
		m.maxFrame = 10
		b := newBoundary(t, m, socket)
		ctx := testContext(t)
		target := sdk.Target{Path: "main", Use: sdk.UseMemory}
		op := (&sdk.Op{Kind: sdk.Read, Length: 1, Event: new([64]byte)}).Append(nil)
		h := newRecorder()
		ep, err := b.Connect(ctx, target, answering(""), h)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := ep.Send([]sdk.Frame{{ID: 1, Data: op}, {ID: 2, Data: append(op, 0)}}, false); n != 1 || !errors.Is(err, sdk.TooLarge) {
			t.Errorf("%d, %v", n, err)
		}
		if err := h.await(ctx, func(r *recorder) bool { return len(r.results) == 1 }); err != nil {
			t.Fatal(err)
		}
		passive := newRecorder()
		pe, _, err := b.Accept(ctx, target, nil, passive)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := pe.Send([]sdk.Frame{{ID: 1, Data: op}}, false); n != 0 || !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("the passive end sent %d, %v", n, err)
		}
		bad := newRecorder()
		ep, err = b.Connect(ctx, target, answering("frame"), bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ep.Send([]sdk.Frame{{ID: 1, Data: op}}, false); err != nil {
			t.Fatal(err)
		}
		if err := bad.await(ctx, func(r *recorder) bool { return r.ends == 1 }); err != nil {
			t.Fatal(err)
		}
		if len(bad.frames)+len(h.frames) != 0 || h.ends+passive.ends != 0 {
			t.Errorf("frames %v %v, ends %d %d", bad.frames, h.frames, h.ends, passive.ends)
		}
	})
}
