package remote

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// Register hands a region to the plugin, with its file, which is closed here in
// every case. Its default deadline is 30 s.
func (t *Transport) Register(ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	if r.File != nil {
		defer r.File.Close() //nolint:errcheck // the plugin works with a descriptor of its own
	}
	l, err := t.able("register", sdk.FeatureMove)
	if err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, t.argument("register", err)
	}
	if r.Device > math.MaxInt32 {
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: register: device %d", t.label, r.Device)
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	req := regionToPB(&r)
	if r.File != nil {
		select {
		case t.filing <- struct{}{}:
			defer func() { <-t.filing }()
		case <-ctx.Done():
			return nil, sdk.Errorf(sdk.Busy, "plugin %s: register: %d others are under way: %w", t.label, cap(t.filing), ctx.Err())
		}
		if req.File, err = t.sendFile(ctx, l.carrier, r.File); err != nil {
			return nil, err
		}
	}
	resp, err := t.rpc.Register(ctx, &pb.RegisterRequest{Region: req}, t.options...)
	if err := t.callResult(ctx, "register", err, resp.GetError()); err != nil {
		return nil, err
	}
	if err := bounds.CheckAttributes(resp.GetAttributes()); err != nil {
		return nil, t.invalid("register", err)
	}
	return resp.GetAttributes(), nil
}

// sendFile puts a region's file on the link, and returns its tag.
func (t *Transport) sendFile(ctx context.Context, c link.Carrier, f *os.File) (uint64, error) {
	if !c.CarriesFiles() {
		return 0, sdk.Errorf(sdk.Unsupported, "plugin %s: register: the link carries no descriptors, which the region needs: it must run over a unix socket", t.label)
	}
	tag := t.tags.Add(1)
	rec := []link.Record{{Type: link.Files, ID: tag, Files: []*os.File{f}}}
	room := time.NewTicker(5 * time.Millisecond)
	defer room.Stop()
	for {
		_, err := c.Send(rec, 0)
		if err == nil {
			return tag, nil
		}
		if !errors.Is(err, link.ErrFull) {
			return 0, t.sendError("register", err)
		}
		select {
		case <-room.C:
		case <-ctx.Done():
			return 0, t.sendError("register", err)
		}
	}
}

// Deregister has the plugin forget a region. Its default deadline is 30 s.
func (t *Transport) Deregister(ctx context.Context, c sdk.Capability) error {
	if _, err := t.able("deregister", sdk.FeatureMove); err != nil {
		return err
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	resp, err := t.rpc.Deregister(ctx, &pb.DeregisterRequest{Capability: c[:]}, t.options...)
	return released(t.callResult(ctx, "deregister", err, resp.GetError()))
}

// Announce tells the plugin of a peer's region. Its default deadline is 30 s.
func (t *Transport) Announce(ctx context.Context, r sdk.RemoteRegion) error {
	if _, err := t.able("announce", sdk.FeatureMove); err != nil {
		return err
	}
	if err := errors.Join(r.Check(), bounds.CheckAttributes(r.Attributes)); err != nil {
		return t.argument("announce", err)
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	resp, err := t.rpc.Announce(ctx, &pb.AnnounceRequest{Region: remoteRegionToPB(&r)}, t.options...)
	return t.callResult(ctx, "announce", err, resp.GetError())
}

// Withdraw has the plugin forget a peer's region, or all. Its default deadline
// is 30 s.
func (t *Transport) Withdraw(ctx context.Context, provider sdk.Incarnation, c sdk.Capability) error {
	if _, err := t.able("withdraw", sdk.FeatureMove); err != nil {
		return err
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	resp, err := t.rpc.Withdraw(ctx, &pb.WithdrawRequest{Provider: provider[:], Capability: c[:]}, t.options...)
	return released(t.callResult(ctx, "withdraw", err, resp.GetError()))
}

// released is the error of a call that waits until memory is let go of: it is
// Busy if the plugin has not answered in time, too.
func released(err error) error {
	if sdk.CodeOf(err) == sdk.DeadlineExceeded {
		return sdk.Errorf(sdk.Busy, "%w, so what is left of it is not known", err)
	}
	return err
}

// argument is the error of a call that does not reach the plugin.
func (t *Transport) argument(what string, err error) error {
	return sdk.Errorf(sdk.InvalidArgument, "plugin %s: %s: %w", t.label, what, err)
}

// moveFromPB checks and converts. Limits come back with their defaults.
func moveFromPB(l *pb.MoveLimits) (sdk.MoveLimits, error) {
	const most = 1<<31 - 1 // Check knows the real ones
	out := sdk.MoveLimits{
		MaxOp: int(min(l.GetMaxOp(), most)), Inflight: int(min(l.GetInflight(), most)),
		InflightBytes: int(min(l.GetInflightBytes(), most)), Parallel: int(min(l.GetParallel(), most)),
		NeedsFlush: l.GetNeedsFlush(), TargetWrites: l.GetTargetWrites(),
	}
	var err error
	if out.Local, err = kindsFromPB(l.GetLocal()); err != nil {
		return sdk.MoveLimits{}, err
	}
	if out.Remote, err = kindsFromPB(l.GetRemote()); err != nil {
		return sdk.MoveLimits{}, err
	}
	return out.WithDefaults(), out.Check()
}

func kindsFromPB(kinds []uint32) ([]sdk.MemoryKind, error) {
	if len(kinds) > bounds.Features {
		return nil, fmt.Errorf("%d kinds of memory, the limit is %d", len(kinds), bounds.Features)
	}
	var out []sdk.MemoryKind
	for _, k := range kinds {
		out = append(out, sdk.MemoryKind(min(k, math.MaxUint8))) // what is none is found by Check
	}
	return out, nil
}

func regionToPB(r *sdk.Region) *pb.Region {
	return &pb.Region{
		Capability: r.Capability[:], Kind: uint32(r.Kind), Base: r.Base, Length: r.Length, Writable: r.Writable,
		Device: int32(r.Device), DeviceUuid: r.DeviceUUID[:], Offset: r.Offset,
		HandleKind: uint32(r.HandleKind), Handle: r.Handle, Allocation: r.Allocation,
	}
}

func remoteRegionToPB(r *sdk.RemoteRegion) *pb.RemoteRegion {
	return &pb.RemoteRegion{
		Provider: r.Provider[:], Instance: r.Instance, Capability: r.Capability[:], Kind: uint32(r.Kind),
		Base: r.Base, Length: r.Length, Writable: r.Writable, Attributes: r.Attributes, Version: r.Version,
	}
}
