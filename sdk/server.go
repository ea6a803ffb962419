package sdk

import (
	"context"
	"log/slog"
	"math"
	"net"
	"os"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/linkgrpc"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// server is the plugin's end of the process boundary: the control service of
// this file, and the link's end in server_link.go. It gives the transport the
// same contract that it would see inside the engine's process.
type server struct {
	pb.UnimplementedPluginServer

	t      Transport
	desc   Description
	limits Limits
	log    *slog.Logger

	// linkGone is closed when the link has ended, after every endpoint was
	// told to close.
	linkGone chan struct{}
	// filesCame wakes Configure, taggedCame all calls of Register.
	filesCame  chan struct{}
	taggedCame broadcast
	registered broadcast // a call of Register is over

	paths pathsNews

	// carrier is set before linkOpen is closed.
	carrier  link.Carrier
	linkOpen chan struct{}

	mu struct {
		sync.Mutex
		socket     *net.UnixConn
		chosen     string // the carrier, once OpenLink has picked it
		streaming  bool   // the one Link call is under way
		tellsPaths bool   // the host wants to know when paths change
		linkEnded  bool
		configured bool
		// registering counts the calls of Register under way.
		registering map[Capability]int
		files       []*os.File // listeners that came over the link
		filesTaken  bool
		tagged      []taggedFile // those of regions, oldest first
		endpoints   map[uint64]*servedEndpoint
		closing     bool // nothing may wait for a window any more
	}
}

func newServer(t Transport, desc Description, socket *net.UnixConn, log *slog.Logger) *server {
	s := &server{
		t: t, desc: desc, limits: desc.Limits.WithDefaults(), log: log,
		linkGone: make(chan struct{}), linkOpen: make(chan struct{}),
		filesCame: make(chan struct{}, 1), paths: newPathsNews(),
	}
	s.mu.socket = socket
	s.mu.endpoints = map[uint64]*servedEndpoint{}
	return s
}

// Describe answers with what the transport said at the start.
func (s *server) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return descriptionToPB(s.desc), nil
}

// OpenLink picks the link's carrier, once.
func (s *server) OpenLink(_ context.Context, req *pb.OpenLinkRequest) (*pb.OpenLinkResponse, error) {
	size := bounds.MaxRecord(s.limits.MaxFrame)
	if int(req.GetMaxRecord()) < size {
		return &pb.OpenLinkResponse{Error: errorToPB(Errorf(InvalidArgument,
			"the host takes records of %d bytes; frames need %d", req.GetMaxRecord(), size))}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.chosen != "" {
		return &pb.OpenLinkResponse{Error: errorToPB(Errorf(Busy, "the link is already open"))}, nil
	}
	supported := []string{link.CarrierGRPC}
	if s.mu.socket != nil {
		supported = append(supported, link.CarrierUnix)
	}
	name, reason, err := link.Negotiate(req.GetCarriers(), supported)
	if err != nil {
		return &pb.OpenLinkResponse{Error: errorToPB(coded(Unsupported, err, "opening the link"))}, nil
	}
	s.mu.chosen, s.mu.tellsPaths = name, req.GetPathsChanged()
	if name == link.CarrierUnix {
		go s.serveLink(link.NewSocket(s.mu.socket, size))
	} else if s.mu.socket != nil {
		_ = s.mu.socket.Close()
	}
	return &pb.OpenLinkResponse{Carrier: name, Reason: reason, Windows: true}, nil
}

// Link is the carrier that any language can speak. The call lasts as long as
// the link, and its return frees whatever still blocks in the stream.
func (s *server) Link(stream grpc.BidiStreamingServer[pb.Packet, pb.Packet]) error {
	s.mu.Lock()
	ok := s.mu.chosen == link.CarrierGRPC && !s.mu.streaming
	s.mu.streaming = s.mu.streaming || ok
	s.mu.Unlock()
	if !ok {
		return status.Error(codes.FailedPrecondition, "the link does not run over gRPC, or is open already")
	}
	ended := make(chan struct{})
	packets := linkgrpc.New(stream, sync.OnceFunc(func() { close(ended) }))
	go s.serveLink(link.NewStream(packets, bounds.MaxRecord(s.limits.MaxFrame)))
	<-ended
	return nil
}

// Configure hands over the listeners that came over the link, and the rest.
func (s *server) Configure(ctx context.Context, req *pb.ConfigureRequest) (*pb.ConfigureResponse, error) {
	setup, err := s.configure(ctx, req)
	if err == nil {
		err = coded(InvalidArgument, bounds.CheckAttributes(setup.Attributes), "Configure's answer")
	}
	if err != nil {
		return &pb.ConfigureResponse{Error: errorToPB(err)}, nil
	}
	return setupToPB(setup), nil
}

func (s *server) configure(ctx context.Context, req *pb.ConfigureRequest) (Setup, error) {
	cfg, err := configFromPB(req)
	if err != nil {
		return Setup{}, err
	}
	cfg.Log, cfg.PathsChanged = s.log, s.paths.tell
	if !s.desc.Has(FeatureKeys) {
		cfg.Keys = nil
	}
	s.mu.Lock()
	again, tellsPaths := s.mu.configured, s.mu.tellsPaths
	s.mu.configured = true
	s.mu.Unlock()
	if again {
		return Setup{}, Errorf(InvalidArgument, "Configure was called twice")
	}
	if tellsPaths {
		go s.tellPaths()
	}
	files, err := s.awaitFiles(ctx, len(req.GetListeners()))
	if err != nil {
		return Setup{}, err
	}
	if cfg.Listeners, err = listenersFrom(files, req.GetListeners()); err != nil {
		return Setup{}, err
	}
	return s.t.Configure(ctx, cfg)
}

// awaitFiles waits for n files: they travel on another channel than the call
// that names them.
func (s *server) awaitFiles(ctx context.Context, n int) ([]*os.File, error) {
	for {
		s.mu.Lock()
		files := s.mu.files
		if len(files) >= n {
			s.mu.files, s.mu.filesTaken = nil, true
			s.mu.Unlock()
			for _, f := range files[n:] {
				_ = f.Close()
			}
			return files[:n], nil
		}
		s.mu.Unlock()
		select {
		case <-s.filesCame:
		case <-ctx.Done():
			return nil, Errorf(DeadlineExceeded, "%d of %d listeners have come over the link: %w", len(files), n, ctx.Err())
		case <-s.linkGone:
			return nil, Errorf(Closed, "the link ended before the listeners came")
		}
	}
}

// listenersFrom makes listeners of the files, which it closes.
func listenersFrom(files []*os.File, names []string) (map[string]net.Listener, error) {
	out := make(map[string]net.Listener, len(files))
	var failed error
	for i, f := range files {
		l, err := net.FileListener(f)
		_ = f.Close()
		switch {
		case err != nil:
			failed = Errorf(InvalidArgument, "listener %q: %w", names[i], err)
		case out[names[i]] != nil:
			_ = l.Close()
			failed = Errorf(InvalidArgument, "listener %q came twice", names[i])
		default:
			out[names[i]] = l
		}
	}
	if failed != nil {
		for _, l := range out {
			_ = l.Close()
		}
		return nil, failed
	}
	return out, nil
}

// Health says that the process runs and answers. What the transport is worth
// shows in its traffic.
func (s *server) Health(context.Context, *pb.HealthRequest) (*pb.HealthResponse, error) {
	return &pb.HealthResponse{}, nil
}

// Paths lists the ways to a peer.
func (s *server) Paths(_ context.Context, req *pb.PathsRequest) (*pb.PathsResponse, error) {
	n, err := s.notifier(FeatureNotify, FeatureMove)
	if err != nil {
		return nil, err
	}
	if err := bounds.CheckAttributes(req.GetRemote()); err != nil {
		return &pb.PathsResponse{Error: errorToPB(coded(InvalidArgument, err, "remote"))}, nil
	}
	paths, err := n.Paths(req.GetRemote())
	if err != nil {
		return &pb.PathsResponse{Error: errorToPB(err)}, nil
	}
	return &pb.PathsResponse{Paths: paths}, nil
}

// Probe asks whether a path is alive.
func (s *server) Probe(ctx context.Context, req *pb.ProbeRequest) (*pb.ProbeResponse, error) {
	p, ok := s.t.(Prober)
	if !ok || !s.desc.Has(FeatureProbe) {
		return nil, absent(FeatureProbe)
	}
	target, err := targetFromPB(req.GetTarget())
	if err == nil {
		err = p.Probe(ctx, target)
	}
	return &pb.ProbeResponse{Error: errorToPB(err)}, nil
}

// Drain stops new work.
func (s *server) Drain(ctx context.Context, _ *pb.DrainRequest) (*pb.DrainResponse, error) {
	d, ok := s.t.(Drainer)
	if !ok || !s.desc.Has(FeatureDrain) {
		return nil, absent(FeatureDrain)
	}
	return &pb.DrainResponse{Error: errorToPB(d.Drain(ctx))}, nil
}

// SetKeys replaces the keys.
func (s *server) SetKeys(ctx context.Context, req *pb.SetKeysRequest) (*pb.SetKeysResponse, error) {
	t, ok := s.t.(Keyed)
	if !ok || !s.desc.Has(FeatureKeys) {
		return nil, absent(FeatureKeys)
	}
	keys, err := keysFromPB(req.GetKeys())
	if err == nil && keys == nil {
		err = Errorf(InvalidArgument, "no keys were given")
	}
	if err == nil {
		err = t.SetKeys(ctx, *keys)
	}
	return &pb.SetKeysResponse{Error: errorToPB(err)}, nil
}

// Close ends everything; the process lives on until its host ends the link or
// the plugin.
func (s *server) Close(ctx context.Context, _ *pb.CloseRequest) (*pb.CloseResponse, error) {
	s.stopWaiting()
	return &pb.CloseResponse{Error: errorToPB(s.t.Close(ctx))}, nil
}

// notifier returns what makes endpoints, if one of the features is there.
func (s *server) notifier(of ...Feature) (Notifier, error) {
	n, ok := s.t.(Notifier)
	if !ok || !slices.ContainsFunc(of, s.desc.Has) {
		return nil, absent(of[0])
	}
	return n, nil
}

// maker is notifier for the endpoint of a target.
func (s *server) maker(t *pb.Target) (Notifier, error) {
	if Use(min(t.GetUse(), math.MaxUint8)) != UseMemory {
		return s.notifier(FeatureNotify)
	}
	if _, err := s.mover(); err != nil {
		return nil, err
	}
	return s.notifier(FeatureMove)
}

// absent is how the control channel says that an ability is not there.
func absent(f Feature) error {
	return status.Error(codes.Unimplemented, f.String())
}
