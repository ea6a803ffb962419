package sdk

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// closeTimeout is what an orderly end grants to the transport's Close. The
// host's patience is shorter; this is for a host that has none left.
const closeTimeout = 5 * time.Second

// linger is what an end that the host did not ask for leaves to the link's
// writer for its last records. What does not make it counts as unknown there.
const linger = 50 * time.Millisecond

// pluginName is the one entry of the plugin set that both ends use.
const pluginName = "transport"

// Serve is a plugin's whole main. It serves t to the host that started the
// process and exits the process when the host is done with it, asks for it
// (SIGTERM) or is gone. SIGINT is ignored: the host decides.
//
// Before t sees anything, inherited descriptors are made close-on-exec, core
// dumps are switched off, and standard output is folded into standard error,
// so that a library that prints there breaks nothing. Log through
// [Config.Log].
//
// Run by a person it explains itself; --version, --describe and --doctor answer
// on standard output.
func Serve(t Transport) {
	os.Exit(serve(t, os.Args[1:]))
}

func serve(t Transport, args []string) int {
	if err := sealDescriptors(); err != nil {
		fmt.Fprintln(os.Stderr, "hawser plugin: cannot set close-on-exec on inherited descriptors:", err)
		return 1
	}
	desc := t.Describe()
	if len(args) > 0 || os.Getenv(PluginCookieKey) != PluginCookieValue {
		return person(t, desc, args)
	}
	in, err := inherit()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hawser plugin: cannot start under this host:", err)
		return 1
	}
	log := newLogger(in.stderr, os.Getenv(EnvLogLevel))
	if os.Getenv("GOMAXPROCS") == "" {
		// A carrier spends its time in the kernel. With as many processors as
		// the host's runtime, the two runtimes' idle threads, which look for
		// work after every wake-up, take the cores from each other: on two
		// cores a round trip takes a tenth longer.
		runtime.GOMAXPROCS(max(1, runtime.GOMAXPROCS(0)/2))
	}
	p := &process{server: newServer(t, desc, in.link, log), in: in, log: log}
	return p.run()
}

// process is the plugin's process while a host uses it.
type process struct {
	server *server
	in     *inherited
	log    *slog.Logger

	greeted sync.Once
	ended   sync.Once
	grpc    bool // set on the main goroutine, before anything is served
}

func (p *process) run() int {
	p.watchSignals()
	if p.in.parent != nil {
		go p.watchParent()
	}
	go func() {
		// Without its link the plugin is of no use to anyone.
		<-p.server.linkGone
		p.end("the host closed the link")
		os.Exit(0)
	}()
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig: plugin.HandshakeConfig{
			ProtocolVersion:  ContractVersion,
			MagicCookieKey:   PluginCookieKey,
			MagicCookieValue: PluginCookieValue,
		},
		Plugins:    plugin.PluginSet{pluginName: &served{server: p.server}},
		GRPCServer: p.newGRPCServer,
		Logger:     newFrameworkLogger(p.log),
	})
	if !p.grpc {
		return 1 // go-plugin has logged why
	}
	p.end("the host ended the plugin")
	return 0
}

// messageLimits are what the description needs, in both directions: grpc's own
// default is 4 MiB for what arrives. The host sets the same.
func messageLimits(l Limits) []grpc.ServerOption {
	size := bounds.MaxMessage(l.MaxFrame)
	return []grpc.ServerOption{grpc.MaxRecvMsgSize(size), grpc.MaxSendMsgSize(size)}
}

func (p *process) newGRPCServer(opts []grpc.ServerOption) *grpc.Server {
	p.grpc = true
	opts = append(opts, messageLimits(p.server.limits)...)
	return grpc.NewServer(append(opts,
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
			p.greeted.Do(p.greet)
			return h(ctx, req)
		}))...)
}

// greet runs at the first call, after the handshake was written: go-plugin has
// by then put pipes of its own in place of os.Stdout and os.Stderr, which end
// in the host's bit bucket. What the transport prints belongs on standard
// error. Nothing reads these variables at the same time, since the transport
// has not been called yet.
func (p *process) greet() {
	os.Stdout, os.Stderr = p.in.stdout, p.in.stderr
	_ = p.in.handshake.Close()
	_ = os.Unsetenv(PluginCookieKey)
	_ = os.Unsetenv("PLUGIN_CLIENT_CERT")
}

func (p *process) watchSignals() {
	// A closed log pipe must cost the log, not the plugin.
	ignored := make(chan os.Signal, 1)
	signal.Notify(ignored, os.Interrupt, syscall.SIGPIPE)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	go func() {
		<-term
		p.end("SIGTERM")
		time.Sleep(linger)
		os.Exit(0)
	}()
}

// watchParent exits at once when the host is gone: there is nobody left to
// close anything for, and the kernel releases the rest.
func (p *process) watchParent() {
	buf := make([]byte, 16)
	for {
		if _, err := p.in.parent.Read(buf); err != nil {
			os.Exit(0)
		}
	}
}

// end closes the transport, once; further callers wait for the first.
func (p *process) end(why string) {
	p.ended.Do(func() {
		p.log.Debug("plugin ends", "why", why)
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := p.server.t.Close(ctx); err != nil {
				p.log.Warn("close", "err", err)
			}
		}()
		select {
		case <-done:
		case <-ctx.Done():
		}
	})
}

// served registers the transport's service with go-plugin.
type served struct {
	plugin.NetRPCUnsupportedPlugin
	server *server
}

func (s *served) GRPCServer(_ *plugin.GRPCBroker, g *grpc.Server) error {
	pb.RegisterPluginServer(g, s.server)
	return nil
}

func (s *served) GRPCClient(context.Context, *plugin.GRPCBroker, *grpc.ClientConn) (any, error) {
	return nil, Errorf(Unsupported, "the serving end is no client")
}
