package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/linkgrpc"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// hostLink is the host's end of the open link.
type hostLink struct {
	carrier link.Carrier
	socket  *net.UnixConn // nil if it runs over gRPC
}

// SocketPair makes the two ends of a link over a unix socket: the host's, for
// [Transport.Open], and the plugin's, to be inherited and then closed here.
func SocketPair() (host *net.UnixConn, plugin *os.File, err error) {
	h, p, err := link.Socketpair()
	if err != nil {
		return nil, nil, sdk.Errorf(sdk.Unsupported, "%w", err)
	}
	host, err = link.FileConn(h)
	if err != nil {
		_ = p.Close()
		return nil, nil, sdk.Errorf(sdk.Unsupported, "%w", err)
	}
	return host, p, nil
}

// openLink agrees with the plugin on a carrier and starts the reader.
func (t *Transport) openLink(ctx context.Context, socket *net.UnixConn) error {
	var offered []string
	if socket != nil {
		offered = append(offered, link.CarrierUnix)
	}
	offered = append(offered, link.CarrierGRPC)
	size := bounds.MaxRecord(t.limits.MaxFrame)
	resp, err := t.rpc.OpenLink(ctx, &pb.OpenLinkRequest{Carriers: offered, MaxRecord: uint32(size), PathsChanged: true}, t.options...)
	if err := t.callResult(ctx, "open link", err, resp.GetError()); err != nil {
		return err
	}
	if t.windows = resp.GetWindows(); !t.windows {
		t.log.Warn("the plugin knows no windows: if a peer at protocol 0 or 1 finds the queue full, its endpoints end", "plugin", t.label)
	}
	if socket == nil {
		t.log.Info("the link runs over gRPC: no socket was made for it", "plugin", t.label)
	}
	switch name := resp.GetCarrier(); {
	case name == link.CarrierUnix && socket != nil:
		return t.startLink(&hostLink{carrier: link.NewSocket(socket, size), socket: socket})
	case name == link.CarrierGRPC:
		if socket != nil {
			_ = socket.Close()
			t.log.Warn("the link runs over gRPC, which costs several times the CPU", "plugin", t.label, "reason", bounds.Text(resp.GetReason()))
		}
		packets, err := t.packetStream(ctx)
		if err != nil {
			return err
		}
		return t.startLink(&hostLink{carrier: link.NewStream(packets, size)})
	default:
		return t.invalid("open link", fmt.Errorf("carrier %q was not offered", bounds.Text(name)))
	}
}

// packetStream opens the Link call. It outlives ctx, and what it still holds
// outlives the plugin.
func (t *Transport) packetStream(ctx context.Context) (link.PacketStream, error) {
	call, cancel := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, cancel)
	stream, err := t.rpc.Link(call, t.options...)
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		cancel()
		return nil, t.callError(ctx, "open link", err)
	}
	return linkgrpc.New(stream, cancel), nil
}

func (t *Transport) startLink(l *hostLink) error {
	t.mu.Lock()
	if t.mu.drained {
		t.mu.Unlock()
		_ = l.carrier.Close()
		return t.gone("open link")
	}
	t.mu.link = l
	t.mu.Unlock()
	go t.readLink(l.carrier)
	return nil
}

// readLink handles records until the link ends, and then ends everything that
// hangs on it. It is the only goroutine that calls Handlers.
func (t *Transport) readLink(c link.Carrier) {
	d := dispatcher{t: t}
	var recs []link.Record
	var err error
	for err == nil {
		if recs, err = c.Recv(recs[:0]); len(recs) > 0 {
			if bad := d.handle(recs); bad != nil {
				err = bad
			}
		}
	}
	t.setReason(t.linkReason(err))
	t.cancel()
	t.mu.Lock()
	t.mu.down = true
	t.mu.Unlock()
	_ = c.Close()
	t.senders.Wait()
	t.endEndpoints()
}

// linkReason says what the link's end means.
func (t *Transport) linkReason(err error) reason {
	switch {
	case errors.Is(err, io.EOF):
		return reason{rankExited, sdk.Errorf(sdk.PluginExited, "plugin %s: its end of the link is gone", t.label)}
	case errors.Is(err, link.ErrClosed):
		return reason{rankExited, sdk.Errorf(sdk.PluginExited, "plugin %s: the link was closed", t.label)}
	case errors.Is(err, link.ErrViolation):
		return reason{rankViolation, sdk.Errorf(sdk.PluginExited, "plugin %s: it broke the rules of the link: %w", t.label, err)}
	}
	return reason{rankExited, sdk.Errorf(sdk.PluginExited, "plugin %s: %w", t.label, err)}
}

// endEndpoints gives every endpoint that is left its end.
func (t *Transport) endEndpoints() {
	t.mu.Lock()
	t.mu.drained = true
	left := make([]*endpoint, 0, len(t.mu.endpoints))
	for _, e := range t.mu.endpoints {
		left = append(left, e)
	}
	clear(t.mu.endpoints)
	err := t.mu.reason.err
	t.mu.Unlock()
	for _, e := range left {
		e.end(err, true)
	}
	close(t.done)
}
