package demo

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// NodeCommand is the hidden command whose process calls [ServeNode].
const NodeCommand = "demo-node"

// sendArgs ask a node to send.
type sendArgs struct {
	Peer        string
	Count, Pace int
}

// paceArgs change the pace, and ask for some at once.
type paceArgs struct {
	Pace, Burst int
}

// ServeNode is a node's process: it does what its parent asks for on in, and
// tells what happens on out, until in ends.
func ServeNode(ctx context.Context, in io.ReadCloser, out io.Writer, log *slog.Logger) error {
	n := &node{Node: lab.NewNode(log), journal: newJournal()}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := lab.Serve(ctx, in, out, func(e *lab.Emitter) map[string]lab.Handler {
		n.tasks.Go(func() { n.journal.run(ctx, e) })
		return n.Handlers(map[string]lab.Handler{
			"send":    lab.With(func(_ context.Context, a sendArgs) (any, error) { return nil, n.send(ctx, a) }),
			"pace":    lab.With(n.pace),
			"receive": lab.With(func(context.Context, struct{}) (any, error) { return nil, n.receive(ctx) }),
		})
	})
	cancel()
	n.tasks.Wait()
	return errors.Join(err, n.Close(closeTimeout))
}

// closeTimeout is how long a node that ends waits for what is pending.
const closeTimeout = 2 * time.Second

// node is a node's process.
type node struct {
	*lab.Node
	journal *journal
	tasks   sync.WaitGroup

	mu     sync.Mutex
	sender *sender
}

func (n *node) send(ctx context.Context, a sendArgs) error {
	e, err := n.Engine()
	if err != nil {
		return err
	}
	s := &sender{e: e, peer: a.Peer, count: a.Count, journal: n.journal}
	s.pace.Store(int64(a.Pace))
	n.mu.Lock()
	n.sender = s
	n.mu.Unlock()
	n.tasks.Go(func() { s.run(ctx) })
	return nil
}

func (n *node) pace(_ context.Context, a paceArgs) (any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sender == nil {
		return nil, errors.New("nothing is being sent")
	}
	n.sender.pace.Store(int64(a.Pace))
	n.sender.burst.Add(int64(a.Burst))
	return nil, nil
}

func (n *node) receive(ctx context.Context) error {
	e, err := n.Engine()
	if err != nil {
		return err
	}
	n.tasks.Go(func() {
		for {
			r, err := e.Receive(ctx)
			if err != nil {
				return
			}
			a := arrivalOf(r)
			n.journal.add(func(e *entries) { e.Arrived = append(e.Arrived, a) })
		}
	})
	return nil
}

func arrivalOf(r *engine.Received) arrival {
	return arrival{
		Name: r.Name, Transport: r.Transport, At: lab.Now(), Intact: intact(r.Name, r.Payload),
		Sender: r.Stamp.Sender.String(), Session: r.Stamp.Session, Seq: r.Stamp.Seq,
	}
}
