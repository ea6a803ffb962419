package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// peer is one of the two nodes.
type peer struct {
	*lab.Process
	name       string
	host       lab.Host
	slow       time.Duration // factor of how long it may take for anything
	transports []string
	opened     lab.Opened
}

// stage is the two nodes of one row, and what happens to them.
type stage struct {
	o        Options
	row      Row
	ledger   *ledger
	random   *rand.Rand
	sender   *peer
	receiver *peer
	life     int               // the receiver's
	others   []*peer           // beside these two
	proxies  map[string]*proxy // by the node that is behind it
	dir      string            // of control sockets, or empty
	thawed   []time.Duration   // when the receiver was resumed
	victims  []*victim         // nodes that are frozen
	// deadAfter is how long it took until a dead path was reported, at least, and
	// deadWithin at most.
	deadAfter, deadWithin time.Duration
	held                  int // how often senders have said that they are done before END
	// left is how many more faults have to fit into the stream, and cycle how
	// long one has taken until the next could happen.
	left     int
	cycle    time.Duration
	pacing   sync.Mutex // guards paced, the stream's pace
	paced    int
	faults   []*Fault
	notes    []string
	problems []string
}

const (
	senderName   = "sender"
	receiverName = "receiver"
	// reportTimeout bounds calls that nothing can hold up.
	reportTimeout = 5 * time.Second
	// anyPort is for a node to listen at, on whatever host it is.
	anyPort = ""
	// endTimeout is how long a node may take to end.
	endTimeout = 5 * time.Second
)

// setup is a node's configuration. Ten kills are more than a plugin is
// normally forgiven, and a restart must not take longer each time.
func (o Options) setup(row Row, name, listen string) lab.Setup {
	x := lab.Setup{
		Name: name, Listen: listen, PluginsDir: o.PluginsDir, Lock: o.Lock, Transports: row.transports,
		CrashBudget: 1000, MaxRestartBackoffMS: 500, DeadlineMS: 30_000 * int(o.slow()),
	}
	if len(o.Hosts) > 0 {
		x.Insecure = true // nobody else is on their network
		x.StartTimeoutMS, x.HealthTimeoutMS = 180_000, 20_000
	}
	return x
}

// reachable has the streams of a node on a host of its own listen where its
// peers are, which they do not by default.
func reachable(x *lab.Setup, address string) error {
	for _, name := range []string{first, second} {
		settings := map[string]any{}
		if given := x.Settings[name]; given != nil {
			if err := json.Unmarshal(given, &settings); err != nil {
				return err
			}
		}
		if settings["listen"] == nil {
			settings["listen"] = address + ":0"
		}
		b, err := json.Marshal(settings)
		if err != nil {
			return err
		}
		if x.Settings == nil {
			x.Settings = map[string]json.RawMessage{}
		}
		x.Settings[name] = b
	}
	return nil
}

// setup is a node's configuration in this row.
func (s *stage) setup(name, listen string) lab.Setup {
	x := s.o.setup(s.row, name, listen)
	if s.row.setup != nil {
		s.row.setup(s, name, &x)
	}
	return x
}

// sizes are the row's.
func (s *stage) sizes() sizes {
	if s.row.sizes != nil {
		return s.row.sizes(s.o.Count)
	}
	return sizes{Base: smallPayload}
}

// pace is the row's, in notifications a second.
func (s *stage) fullPace() int {
	pace := s.row.pace
	if s.row.lasts > 0 {
		lasts := s.row.lasts + time.Duration(s.row.waits)*s.o.callTimeout()
		pace = max(1, int(float64(s.o.Count)/lasts.Seconds()))
	}
	if len(s.o.Hosts) > 0 && (pace == 0 || pace > emulatedPace) {
		return emulatedPace
	}
	return pace
}

// emulatedPace is what emulated hosts carry without falling behind.
const emulatedPace = 80

// prepare makes what the nodes' configuration names.
func (s *stage) prepare() (err error) {
	if s.row.prepare != nil {
		err = s.row.prepare(s)
	}
	return err
}

// start starts both nodes.
func (s *stage) start(ctx context.Context) error {
	var both errgroup.Group
	both.Go(func() (err error) { s.sender, err = s.open(ctx, senderName, anyPort, 0); return err })
	both.Go(func() error { return s.openReceiver(ctx, anyPort) })
	if err := both.Wait(); err != nil {
		return err
	}
	for _, n := range s.nodes() {
		if p := s.proxies[n.name]; p != nil {
			t, err := n.transport(ctx, first, "be up", func(t lab.Transport) bool { return len(t.Listeners) > 0 })
			if err != nil {
				return err
			}
			for _, addr := range t.Listeners {
				p.lead(addr)
			}
		}
	}
	return nil
}

// open starts a node's process and opens its engine. What it tells is written
// down unless life is negative.
func (s *stage) open(ctx context.Context, name, listen string, life int) (*peer, error) {
	args := append([]string{NodeCommand}, s.o.NodeArgs...)
	host := s.o.hostOf(name)
	if listen == anyPort {
		listen = host.Address() + ":0"
	}
	o := lab.Options{Host: host, Args: args, Stderr: s.o.Stderr}
	if life >= 0 {
		o.OnEvent = func(event string, data json.RawMessage) { s.ledger.take(life, host.Shift(), event, data) }
	}
	p, err := lab.Start(o)
	if err != nil {
		return nil, fmt.Errorf("start the %s: %w", name, err)
	}
	setup := s.setup(name, listen)
	if len(s.o.Hosts) > 0 {
		if err := reachable(&setup, host.Address()); err != nil {
			return nil, fmt.Errorf("open the %s: %w", name, err)
		}
	}
	n := &peer{Process: p, name: name, host: host, slow: s.o.slow(), transports: setup.Transports}
	if err := n.Call(ctx, "open", setup, &n.opened); err != nil {
		// In order: it may have made a run directory and started plugins.
		end, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		_ = n.Close(end)
		return nil, fmt.Errorf("open the %s: %w", name, err)
	}
	return n, nil
}

// openReceiver starts the receiver's next life.
func (s *stage) openReceiver(ctx context.Context, listen string) error {
	s.life++
	n, err := s.open(ctx, receiverName, listen, s.life)
	if err != nil {
		return err
	}
	s.receiver = n
	a := receiveArgs{Sizes: s.sizes()}
	if !s.row.noTransfers {
		a.Count = s.o.Count
	}
	return n.Call(ctx, "receive", a, nil)
}

// close ends both nodes, whatever state they are in.
func (s *stage) close() {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout*s.o.slow())
	defer cancel()
	var both errgroup.Group
	for _, v := range s.victims {
		_ = v.thaw() // else it could not end
	}
	for _, n := range s.nodes() {
		if n != nil {
			both.Go(func() error { return n.Close(ctx) })
		}
	}
	if err := both.Wait(); err != nil {
		s.problems = append(s.problems, err.Error())
	}
	for _, p := range s.proxies {
		p.close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// send begins the row's stream.
func (s *stage) send(ctx context.Context) error {
	return s.sender.Call(ctx, "send", s.sending(0, s.o.Count, false), nil)
}

// sending asks for a part of the row.
func (s *stage) sending(from, to int, hold bool) sendArgs {
	return sendArgs{
		Peer: s.receiver.opened.Address, Count: s.o.Count, Pace: s.fullPace(),
		From: from, To: to, Hold: hold, Sizes: s.sizes(), Transfers: !s.row.noTransfers, Within: sendTimeout * s.o.slow(),
	}
}

// pace changes the stream's pace, and asks for some more at once.
func (s *stage) pace(ctx context.Context, pace, burst int) error {
	s.pacing.Lock()
	defer s.pacing.Unlock()
	return s.paceLocked(ctx, pace, burst)
}

func (s *stage) paceLocked(ctx context.Context, pace, burst int) error {
	s.paced = pace
	return s.sender.Call(ctx, "pace", paceArgs{pace, burst}, nil)
}

// fitting is the pace at which what is left of the stream lasts as long as the
// faults that are left.
func (s *stage) fitting() int {
	sent, _ := s.ledger.counts()
	return fitting(s.o.Count-sent, s.left, s.cycle, s.fullPace())
}

// fitting is the pace at which the rest lasts for so many more faults of a cycle
// each and beyond the last, at most the row's.
func fitting(rest, faults int, cycle time.Duration, most int) int {
	pace := float64(rest) / (float64(faults+1) * cycle.Seconds())
	return max(1, min(most, int(pace)))
}

// trickle is the pace while a fault that is due has to wait for something.
func (s *stage) trickle() int { return max(1, s.fitting()/4) }

// slowdown lowers the pace, whatever it is, while a fault takes longer than any
// before it, until the returned function is called: however long that is, there
// is a stream left for the next one.
func (s *stage) slowdown(ctx context.Context, began time.Time) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(slowdownEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-over:
				return
			}
			sent, _ := s.ledger.counts()
			fits := fitting(s.o.Count-sent, s.left, max(s.cycle, time.Since(began)), s.fullPace())
			s.pacing.Lock()
			if fits < s.paced {
				_ = s.paceLocked(ctx, fits, 0) // the next call would fail, too
			}
			s.pacing.Unlock()
		}
	}()
	return func() { close(over); <-done }
}

const slowdownEvery = 50 * time.Millisecond

// mid waits until a part of the stream was sent, in thousandths, and then
// until ready returns; meanwhile the stream goes on slowly. Back at full pace
// it lets fire happen amid a burst, so that something is on its way.
func (s *stage) mid(ctx context.Context, part int, ready, fire func() error) error {
	if err := s.awaitSent(ctx, s.o.Count*part/1000); err != nil {
		return err
	}
	began := time.Now()
	if ready != nil {
		if err := s.pace(ctx, s.trickle(), 0); err != nil {
			return err
		}
		stop := s.slowdown(ctx, began)
		err := ready()
		stop()
		if err != nil {
			return err
		}
	}
	sent, _ := s.ledger.counts()
	burst := min(s.o.Count/80, (s.o.Count-sent)/4)
	s.left--
	if err := s.pace(ctx, s.fitting(), burst); err != nil {
		return err
	}
	if err := s.awaitSent(ctx, sent+burst/5); err != nil {
		return err
	}
	stop := s.slowdown(ctx, began)
	err := fire()
	stop()
	if err != nil {
		return err
	}
	s.cycle = max(s.cycle, time.Since(began))
	return s.pace(ctx, s.fitting(), 0)
}

func (s *stage) awaitSent(ctx context.Context, n int) error {
	over := false
	err := s.ledger.await(ctx, fmt.Sprintf("%d to be sent", n), func(l *ledger) bool {
		over = l.dones > 0
		return len(l.sent) >= n || over
	})
	if over && err == nil {
		err = fmt.Errorf("the stream was over before %d more faults could happen", s.left)
	}
	return err
}

// flowing waits until something arrived after t, over the transport unless
// that is empty.
func (s *stage) flowing(ctx context.Context, t time.Duration, transport string) error {
	what := "something to arrive"
	if transport != "" {
		what += " over " + transport
	}
	return s.ledger.await(ctx, what, func(l *ledger) bool {
		_, ok := l.arrivedSince(t, func(a arrival) bool { return transport == "" || a.Transport == transport })
		return ok
	})
}

// record notes a fault that happened at t.
func (s *stage) record(t time.Duration, what string, args ...any) *Fault {
	f := &Fault{What: fmt.Sprintf(what, args...), when: t}
	s.faults = append(s.faults, f)
	return f
}

func (s *stage) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

func (s *stage) require(ok bool, format string, args ...any) {
	if !ok {
		s.problems = append(s.problems, fmt.Sprintf(format, args...))
	}
}

// stats asks a node for its counts.
func (n *peer) stats(ctx context.Context) (st engine.Stats, err error) {
	if n == nil {
		return st, errors.New("there is no such node")
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout*n.slow)
	defer cancel()
	err = n.Call(ctx, "stats", nil, &st)
	return st, err
}
