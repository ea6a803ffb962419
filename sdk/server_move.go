package sdk

import (
	"context"
	"os"
	"time"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// Register hands over a region, with the file that came over the link for it.
func (s *server) Register(ctx context.Context, req *pb.RegisterRequest) (*pb.RegisterResponse, error) {
	m, err := s.mover()
	if err != nil {
		return nil, err
	}
	attrs, err := s.register(ctx, m, req.GetRegion())
	if err == nil {
		err = coded(InvalidArgument, bounds.CheckAttributes(attrs), "Register's answer")
	}
	if err != nil {
		return &pb.RegisterResponse{Error: errorToPB(err)}, nil
	}
	return &pb.RegisterResponse{Attributes: attrs}, nil
}

func (s *server) register(ctx context.Context, m Mover, from *pb.Region) (Attributes, error) {
	var file *os.File
	if from.GetFile() != 0 {
		var err error
		if file, err = s.awaitTagged(ctx, from.GetFile()); err != nil {
			return nil, err
		}
	}
	r, err := regionFromPB(from, file)
	if err != nil {
		if file != nil {
			_ = file.Close()
		}
		return nil, err
	}
	defer s.registering(r.Capability)()
	return m.Register(ctx, r)
}

// registering notes that a region is being registered, until over is called.
func (s *server) registering(c Capability) (over func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.registering == nil {
		s.mu.registering = map[Capability]int{}
	}
	s.mu.registering[c]++
	return func() {
		s.mu.Lock()
		if s.mu.registering[c]--; s.mu.registering[c] == 0 {
			delete(s.mu.registering, c)
		}
		s.mu.Unlock()
		s.registered.tell()
	}
}

// awaitRegistered lets no Deregister overtake the Register of its region, whose
// caller may have left: the region would stay.
func (s *server) awaitRegistered(ctx context.Context, c Capability) error {
	for {
		news := s.registered.next()
		s.mu.Lock()
		n := s.mu.registering[c]
		s.mu.Unlock()
		if n == 0 {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return Errorf(Busy, "region %v is still being registered", c)
		}
	}
}

// Deregister forgets a region.
func (s *server) Deregister(ctx context.Context, req *pb.DeregisterRequest) (*pb.DeregisterResponse, error) {
	m, err := s.mover()
	if err != nil {
		return nil, err
	}
	c, err := capabilityFromPB(req.GetCapability())
	if err == nil {
		ctx, cancel := inTime(ctx)
		defer cancel()
		if err = s.awaitRegistered(ctx, c); err == nil {
			err = m.Deregister(ctx, c)
		}
	}
	return &pb.DeregisterResponse{Error: errorToPB(err)}, nil
}

// Announce says what a peer's region is.
func (s *server) Announce(ctx context.Context, req *pb.AnnounceRequest) (*pb.AnnounceResponse, error) {
	m, err := s.mover()
	if err != nil {
		return nil, err
	}
	r, err := remoteRegionFromPB(req.GetRegion())
	if err == nil {
		err = m.Announce(ctx, r)
	}
	return &pb.AnnounceResponse{Error: errorToPB(err)}, nil
}

// Withdraw takes back what Announce said.
func (s *server) Withdraw(ctx context.Context, req *pb.WithdrawRequest) (*pb.WithdrawResponse, error) {
	m, err := s.mover()
	if err != nil {
		return nil, err
	}
	provider, err := incarnationFromPB("provider", req.GetProvider())
	if err == nil {
		var c Capability
		if c, err = capabilityFromPB(req.GetCapability()); err == nil {
			ctx, cancel := inTime(ctx)
			defer cancel()
			err = m.Withdraw(ctx, provider, c)
		}
	}
	return &pb.WithdrawResponse{Error: errorToPB(err)}, nil
}

// inTime ends a little before ctx, so that the answer, which says what is left,
// comes before the host has stopped waiting for it.
func inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, end.Add(-min(time.Until(end)/4, time.Second)))
}

func (s *server) mover() (Mover, error) {
	m, ok := s.t.(Mover)
	if !ok || !s.desc.Has(FeatureMove) {
		return nil, absent(FeatureMove)
	}
	return m, nil
}

// target checks what an endpoint is to be bound to against the description.
func (s *server) target(t *pb.Target) (Target, error) {
	out, err := targetFromPB(t)
	lanes := 1
	if out.Use == UseMemory {
		lanes = s.desc.Move.WithDefaults().Parallel
	}
	if err == nil && (out.Lane < 0 || out.Lane >= lanes) {
		err = Errorf(InvalidArgument, "target's lane %d, there are %d for %v", out.Lane, lanes, out.Use)
	}
	return out, err
}

func useFromPB(n uint32) (Use, error) {
	if n > uint32(UseMemory) {
		return 0, Errorf(InvalidArgument, "target's use %d does not exist", n)
	}
	return Use(n), nil
}

func moveToPB(l MoveLimits) *pb.MoveLimits {
	l = l.WithDefaults()
	out := &pb.MoveLimits{
		MaxOp: uint32(l.MaxOp), Inflight: uint32(l.Inflight), InflightBytes: uint32(l.InflightBytes),
		NeedsFlush: l.NeedsFlush, TargetWrites: l.TargetWrites, Parallel: uint32(l.Parallel),
	}
	for _, k := range l.Local {
		out.Local = append(out.Local, uint32(k))
	}
	for _, k := range l.Remote {
		out.Remote = append(out.Remote, uint32(k))
	}
	return out
}

func capabilityFromPB(b []byte) (Capability, error) {
	var c Capability
	if len(b) != len(c) {
		return c, Errorf(InvalidArgument, "a capability has %d bytes, not %d", len(c), len(b))
	}
	copy(c[:], b)
	return c, nil
}

// regionFromPB checks and converts. The file stays the caller's on error.
func regionFromPB(r *pb.Region, file *os.File) (Region, error) {
	out := Region{
		Kind: memoryKind(r.GetKind()), Base: r.GetBase(), Length: r.GetLength(), Writable: r.GetWritable(),
		Device: int(r.GetDevice()), File: file, Offset: r.GetOffset(),
		HandleKind: HandleKind(min(r.GetHandleKind(), 255)), Handle: r.GetHandle(), Allocation: r.GetAllocation(),
	}
	var err error
	if out.Capability, err = capabilityFromPB(r.GetCapability()); err != nil {
		return Region{}, err
	}
	if n := len(r.GetDeviceUuid()); n != len(out.DeviceUUID) {
		return Region{}, Errorf(InvalidArgument, "a device's UUID has %d bytes, not %d", len(out.DeviceUUID), n)
	}
	copy(out.DeviceUUID[:], r.GetDeviceUuid())
	return out, out.Check()
}

func remoteRegionFromPB(r *pb.RemoteRegion) (RemoteRegion, error) {
	out := RemoteRegion{
		Instance: r.GetInstance(), Kind: memoryKind(r.GetKind()), Base: r.GetBase(), Length: r.GetLength(),
		Writable: r.GetWritable(), Attributes: r.GetAttributes(), Version: r.GetVersion(),
	}
	if err := bounds.CheckAttributes(out.Attributes); err != nil {
		return RemoteRegion{}, coded(InvalidArgument, err, "announce")
	}
	var err error
	if out.Capability, err = capabilityFromPB(r.GetCapability()); err != nil {
		return RemoteRegion{}, err
	}
	if out.Provider, err = incarnationFromPB("provider", r.GetProvider()); err != nil {
		return RemoteRegion{}, err
	}
	return out, out.Check()
}

// memoryKind keeps a number that is no kind from becoming one.
func memoryKind(n uint32) MemoryKind { return MemoryKind(min(n, 255)) }
