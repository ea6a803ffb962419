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
	// From and To are the part of the row that this node sends. With Hold END
	// waits until it is asked for.
	From, To int
	Hold     bool
	Sizes    sizes
	// Transfers: every second one goes with a transfer, which may take so long.
	Transfers bool
	Within    time.Duration
}

// receiveArgs ask a node to receive notifications of these sizes, and, with
// Count, what transfers of so many write into its memory.
type receiveArgs struct {
	Sizes sizes
	Count int
}

// pingArgs ask for some notifications, one after the other, beside the stream;
// the answer is how long each took until it was acknowledged.
type pingArgs struct {
	Peer           string
	Count, EveryMS int
}

// attempted is how a single Notify went.
type attempted struct {
	TooLarge bool
	Error    string
}

// paceArgs change the pace, and ask for some at once.
type paceArgs struct {
	Pace, Burst int
}

// ServeNode is a node's process: it does what its parent asks for on in, and
// tells what happens on out, until in ends.
func ServeNode(ctx context.Context, in io.ReadCloser, out io.Writer, log *slog.Logger) error {
	h := newHealth()
	n := &node{Node: lab.NewNode(log, h.take), journal: newJournal(), mayRead: make(chan struct{})}
	close(n.mayRead)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := lab.Serve(ctx, in, out, func(e *lab.Emitter) map[string]lab.Handler {
		n.tasks.Go(func() { n.journal.run(ctx, e) })
		return n.Handlers(map[string]lab.Handler{
			"send":    lab.With(func(_ context.Context, a sendArgs) (any, error) { return nil, n.send(ctx, a) }),
			"pace":    lab.With(n.pace),
			"receive": lab.With(func(_ context.Context, a receiveArgs) (any, error) { return nil, n.receive(ctx, a) }),
			"reading": lab.With(n.reading),
			"end":     lab.With(func(context.Context, struct{}) (any, error) { return nil, n.end(ctx) }),
			"pressed": lab.With(n.pressed),
			"ping":    lab.With(n.ping),
			"attempt": lab.With(n.attempt),
			"try":     lab.With(n.try),
			"blocked": lab.With(n.blocked),
			"health":  lab.With(h.report),
			"paths":   lab.With(n.paths),
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

	mu      sync.Mutex
	sender  *sender
	mayRead chan struct{} // closed while the application reads
}

func (n *node) send(ctx context.Context, a sendArgs) error {
	e, err := n.Engine()
	if err != nil {
		return err
	}
	s := &sender{e: e, peer: a.Peer, count: a.Count, from: a.From, to: a.To, hold: a.Hold, sizes: a.Sizes, journal: n.journal}
	if a.Transfers {
		if s.outbox, err = openOutbox(ctx, e, a.Peer, a.Count, a.Within); err != nil {
			return err
		}
	}
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

// current is the sender, once there is one.
func (n *node) current() (*sender, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.sender == nil {
		return nil, errors.New("nothing is being sent")
	}
	return n.sender, nil
}

func (n *node) end(ctx context.Context) error {
	s, err := n.current()
	if err == nil {
		n.tasks.Go(func() { s.end(ctx) })
	}
	return err
}

// pressed is how often the sender found no room.
func (n *node) pressed(context.Context, struct{}) (any, error) {
	s, err := n.current()
	if err != nil {
		return nil, err
	}
	return s.pressed.Load(), nil
}

// ping measures.
func (n *node) ping(ctx context.Context, a pingArgs) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	tick := time.NewTicker(time.Duration(a.EveryMS) * time.Millisecond)
	defer tick.Stop()
	for range a.Count {
		at := time.Now()
		d, err := e.Notify(ctx, a.Peer, engine.Notification{Name: "ping"})
		if err == nil {
			err = d.Wait(ctx)
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(at))
		<-tick.C
	}
	return took, nil
}

// attempt sends one whose name and payload have so many bytes, and tells the
// error.
func (n *node) attempt(ctx context.Context, size int) (any, error) {
	s, err := n.current()
	if err != nil {
		return nil, err
	}
	const name = "attempt"
	d, err := s.e.Notify(ctx, s.peer, engine.Notification{Name: name, Payload: make([]byte, size-len(name))})
	if err == nil {
		err = d.Wait(ctx)
	}
	if err == nil {
		return attempted{}, nil
	}
	return attempted{errors.Is(err, engine.TooLarge), err.Error()}, nil
}

// tryArgs ask for one notification of each of some callers at once.
type tryArgs struct {
	Peer    string
	Callers int
}

// tried is how one went.
type tried struct {
	Took        time.Duration
	Code, Error string
}

// try measures how long notifications take until they have ended.
func (n *node) try(ctx context.Context, a tryArgs) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	list := make([]tried, a.Callers)
	var all sync.WaitGroup
	for i := range list {
		all.Go(func() {
			at := time.Now()
			d, err := e.Notify(ctx, a.Peer, engine.Notification{Name: "try"})
			if err == nil {
				err = d.Wait(ctx)
			}
			list[i].Took = time.Since(at)
			if err != nil {
				list[i].Code, list[i].Error = codeOf(err), err.Error()
			}
		})
	}
	all.Wait()
	return list, nil
}

// blocked is how long the longest call of Notify took.
func (n *node) blocked(context.Context, struct{}) (any, error) {
	s, err := n.current()
	if err != nil {
		return nil, err
	}
	return time.Duration(s.longest.Load()), nil
}

// paths are the ways to all peers.
func (n *node) paths(context.Context, struct{}) (any, error) {
	e, err := n.Engine()
	if err != nil {
		return nil, err
	}
	list := []engine.PathStatus{}
	for _, p := range e.Peers() {
		list = append(list, p.Paths...)
	}
	return list, nil
}

// reading lets the application read, or stops it.
func (n *node) reading(_ context.Context, on bool) (any, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	select {
	case <-n.mayRead:
		if !on {
			n.mayRead = make(chan struct{})
		}
	default:
		if on {
			close(n.mayRead)
		}
	}
	return nil, nil
}

// awaitReading waits while the application does not read.
func (n *node) awaitReading(ctx context.Context) {
	n.mu.Lock()
	mayRead := n.mayRead
	n.mu.Unlock()
	select {
	case <-mayRead:
	case <-ctx.Done():
	}
}

func (n *node) receive(ctx context.Context, args receiveArgs) error {
	e, err := n.Engine()
	if err != nil {
		return err
	}
	b, err := openInbox(e, args.Count)
	if err != nil {
		return err
	}
	n.tasks.Go(func() {
		for {
			n.awaitReading(ctx)
			r, err := e.Receive(ctx)
			if err != nil {
				return
			}
			a := arrivalOf(r, args.Sizes)
			a.Early = !b.wrote(r.Name)
			n.journal.add(func(e *entries) { e.Arrived = append(e.Arrived, a) })
		}
	})
	return nil
}

func arrivalOf(r *engine.Received, z sizes) arrival {
	return arrival{
		Name: r.Name, Transport: r.Transport, At: lab.Now(), Intact: z.intact(r.Name, r.Payload),
		Sender: r.Stamp.Sender.String(), Session: r.Stamp.Session, Seq: r.Stamp.Seq,
	}
}
