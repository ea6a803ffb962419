package sdk

import (
	"log/slog"
	"net"

	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// MessageLimits are the options of the server that Serve makes.
func MessageLimits(t Transport) []grpc.ServerOption {
	return messageLimits(t.Describe().Limits.WithDefaults())
}

// ServeInProcess puts the plugin's end on a gRPC server of the test's. The
// channel is closed when the link has ended.
func ServeInProcess(g *grpc.Server, t Transport, socket *net.UnixConn, log *slog.Logger) <-chan struct{} {
	s := newServer(t, t.Describe(), socket, log)
	pb.RegisterPluginServer(g, s)
	return s.linkGone
}
