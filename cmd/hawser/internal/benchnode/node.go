package benchnode

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// NodeCommand is the hidden command whose process calls [ServeNode].
const NodeCommand = "bench-node"

// measureArgs ask a node to measure towards a peer.
type measureArgs struct {
	Peer                string
	Count, Size, Window int
}

// closeTimeout is how long a node that ends waits for what is pending.
const closeTimeout = 2 * time.Second

// ServeNode is a node's process: it does what its parent asks for on in until
// that ends.
func ServeNode(ctx context.Context, in io.ReadCloser, out io.Writer, log *slog.Logger) error {
	n := lab.NewNode(log, nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var tasks sync.WaitGroup
	var received atomic.Int64
	m := &shared{n: n}
	defer m.close()
	err := lab.Serve(ctx, in, out, func(*lab.Emitter) map[string]lab.Handler {
		more := m.handlers()
		maps.Copy(more, map[string]lab.Handler{
			"echo": func(context.Context, json.RawMessage) (any, error) {
				e, err := n.Engine()
				if err == nil {
					tasks.Go(func() { Echo(ctx, e, func() { received.Add(1) }) })
				}
				return nil, err
			},
			"received": func(context.Context, json.RawMessage) (any, error) { return received.Load(), nil },
			"roundtrip": lab.With(func(ctx context.Context, a measureArgs) (any, error) {
				e, err := n.Engine()
				if err != nil {
					return nil, err
				}
				return RoundTrip(ctx, e, a.Peer, a.Count, a.Size)
			}),
			"burst": lab.With(func(ctx context.Context, a measureArgs) (any, error) {
				e, err := n.Engine()
				if err != nil {
					return nil, err
				}
				return Burst(ctx, e, a.Peer, a.Count, a.Size)
			}),
			"rate": lab.With(func(ctx context.Context, a measureArgs) (any, error) {
				e, err := n.Engine()
				if err != nil {
					return nil, err
				}
				return Rate(ctx, e, a.Peer, a.Count, a.Window, a.Size)
			}),
		})
		return n.Handlers(more)
	})
	cancel()
	tasks.Wait()
	return errors.Join(err, n.Close(closeTimeout))
}
