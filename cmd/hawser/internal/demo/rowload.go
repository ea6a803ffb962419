package demo

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

const (
	oneMiB = 1 << 20
	// payloadLimit is notification.max_payload_bytes.
	payloadLimit = 16 << 20
)

func oversizes(count int) sizes {
	return sizes{Base: smallPayload, Large: map[int]int{
		count / 5: oneMiB, count * 2 / 5: payloadLimit, count * 3 / 5: oneMiB, count * 4 / 5: payloadLimit,
	}}
}

// tooLarge sends one byte more than is allowed, amid the stream.
func tooLarge(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count/2); err != nil {
		return err
	}
	var a attempted
	if err := s.sender.Call(ctx, "attempt", payloadLimit+1, &a); err != nil {
		return err
	}
	s.require(a.TooLarge && strings.Contains(a.Error, strconv.Itoa(payloadLimit)), "%d bytes ended as %q", payloadLimit+1, a.Error)
	s.note("one byte more: %s", a.Error)
	return nil
}

func judgeOversize(s *stage, l *ledger, r *Result) {
	sentAt, took := map[int]time.Duration{}, map[int]time.Duration{}
	for _, x := range l.sent {
		sentAt[x.Index] = x.At
	}
	for _, x := range l.ended {
		took[x.Index] = x.At - sentAt[x.Index]
	}
	large := s.sizes().Large
	for i, n := range large {
		arrived := 0
		for _, a := range l.arrived {
			if a.Name == name(i, s.o.Count) {
				arrived++
				s.require(a.Transport == second, "%d bytes went over %s", n, a.Transport)
			}
		}
		s.require(arrived == 1, "%d bytes arrived %d times", n, arrived)
	}
	var slowest time.Duration
	for i, d := range took {
		if _, ok := large[i]; !ok && i < s.o.Count {
			slowest = max(slowest, d)
		}
	}
	for _, i := range []int{s.o.Count / 5, s.o.Count * 2 / 5} {
		s.note("%d bytes acknowledged after %s", large[i], lap(took[i]))
	}
	s.note("the slowest of the small ones was acknowledged after %s", lap(slowest))
	s.require(r.By[first] > 0, "no small one went over %s", first)
}

const (
	awayTime = 10 * time.Second
	// What the queue of the reader that goes away holds, and what a sender
	// holds for it.
	awayFrames, awayBytes = 256, 1 << 20
	awayOutbox            = 4 << 20
	// awayGrowth is how much memory any of the nodes with its plugins may take
	// meanwhile: much less than what the senders have to send.
	awayGrowth = 48 << 20
	// heldUp is less than what waiting for room at another peer takes,
	// notification.slot_wait_ms.
	heldUp = 500 * time.Millisecond

	secondSender = "second sender"
	bystander    = "bystander"
)

// sizesAway make a stream that is far larger than what the nodes hold.
func sizesAway(count int) sizes { return sizes{Base: min(max(smallPayload, (64<<20)/count), 60<<10)} }

func setupAway(_ *stage, node string, x *lab.Setup) {
	x.OutboxBytes, x.MaxPayloadBytes = awayOutbox, awayBytes
	if node == receiverName {
		x.ReceiveFrames, x.ReceiveBytes = awayFrames, awayBytes
	}
}

// beginAway starts two more nodes, a second sender and one that only listens to
// the first, and lets both senders send a half.
func beginAway(ctx context.Context, s *stage) error {
	s.others = make([]*peer, 2)
	var both errgroup.Group
	both.Go(func() (err error) { s.others[0], err = s.open(ctx, secondSender, anyPort, 0); return err })
	both.Go(func() (err error) {
		if s.others[1], err = s.open(ctx, bystander, anyPort, -1); err == nil {
			err = s.others[1].Call(ctx, "receive", receiveArgs{}, nil)
		}
		return err
	})
	if err := both.Wait(); err != nil {
		s.others = slices.DeleteFunc(s.others, func(n *peer) bool { return n == nil })
		return err
	}
	s.held = 2
	if err := s.sender.Call(ctx, "send", s.sending(0, s.o.Count/2, true), nil); err != nil {
		return err
	}
	return s.others[0].Call(ctx, "send", s.sending(s.o.Count/2, s.o.Count, true), nil)
}

// pings are how long notifications from the sender to the bystander took, in
// ascending order.
func (s *stage) pings(ctx context.Context, count int) (took []time.Duration, err error) {
	err = s.sender.Call(ctx, "ping", pingArgs{Peer: s.others[1].opened.Address, Count: count, EveryMS: 5}, &took)
	slices.Sort(took)
	if err == nil && len(took) != count {
		err = fmt.Errorf("%d pings of %d", len(took), count)
	}
	return took, err
}

// watched are a node's processes.
func (n *peer) watched(ctx context.Context) ([]int, error) {
	var list []lab.Transport
	err := n.Call(ctx, "transports", nil, &list)
	pids := []int{n.PID()}
	for _, t := range list {
		pids = append(pids, t.PID)
	}
	return pids, err
}

// resident is how much memory processes hold, or 0 where that cannot be known.
func resident(pids []int) (sum int) {
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(b)) {
			if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
				kilobytes, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
				sum += kilobytes << 10
			}
		}
	}
	return sum
}

// away lets the receiving application stop reading for a while.
func away(ctx context.Context, s *stage) error {
	w, err := s.watch(ctx)
	if err != nil {
		return err
	}
	defer w.stop()
	if _, err := s.pings(ctx, 1); err != nil { // connects
		return err
	}
	before, err := s.pings(ctx, 100)
	if err != nil {
		return err
	}
	if err := s.awaitSent(ctx, max(2, s.o.Count/20)); err != nil {
		return err
	}
	if err := s.receiver.Call(ctx, "reading", false, nil); err != nil {
		return err
	}
	at := lab.Now()
	f := s.record(at, "the receiver's application stops reading")
	sleep(ctx, time.Second) // all is full by then
	_, gotThen := s.ledger.counts()
	during, err := s.pings(ctx, 1000)
	if err != nil {
		return err
	}
	sleep(ctx, awayTime-(lab.Now()-at))
	_, got := s.ledger.counts()
	st, err := s.receiver.stats(ctx)
	if err != nil {
		return err
	}
	var pressed [2]int
	for i, n := range []*peer{s.sender, s.others[0]} {
		if err := n.Call(ctx, "pressed", nil, &pressed[i]); err != nil {
			return err
		}
		s.require(pressed[i] > 0, "the %s never saw Backpressure", n.name)
	}
	w.stop()
	away := lab.Now() - at
	if err := s.receiver.Call(ctx, "reading", true, nil); err != nil {
		return err
	}
	s.require(got == gotThen, "%d arrived meanwhile", got-gotThen)
	s.require(st.Queued > 0 && st.Queued <= awayFrames, "%d are queued at the receiver, at most %d may be", st.Queued, awayFrames)
	f.Proof = fmt.Sprintf("nothing arrived for %s; %d were queued; the senders saw Backpressure %d and %d times",
		lap(away), st.Queued, pressed[0], pressed[1])
	w.judge()
	median, slow := before[len(before)/2], during[len(during)/2]
	s.require(slow <= 5*median || slow <= 5*time.Millisecond, "to another peer a notification took %s, before %s", lap(slow), lap(median))
	most := during[len(during)*99/100]
	s.require(most <= heldUp, "1%% to another peer took %s and more, as if the reader that is away held them up", lap(most))
	s.note("to another peer: median %d us before, %d us meanwhile, 99%% within %d us",
		median.Microseconds(), slow.Microseconds(), most.Microseconds())
	return s.endHeld(ctx)
}

// endHeld waits until both senders' streams have ended, and lets the first send
// END.
func (s *stage) endHeld(ctx context.Context) error {
	if err := s.ledger.await(ctx, "both senders to be done", func(l *ledger) bool { return l.dones >= s.held }); err != nil {
		return err
	}
	return s.sender.Call(ctx, "end", nil, nil)
}

// watch looks at the nodes' memory until it is stopped.
type watch struct {
	s       *stage
	pids    [][]int // by node
	at      []int   // when it began
	most    []int
	over    chan struct{}
	stopped bool
	tasks   errgroup.Group
}

func (s *stage) watch(ctx context.Context) (*watch, error) {
	w := &watch{s: s, over: make(chan struct{})}
	for _, n := range s.nodes() {
		pids, err := n.watched(ctx)
		if err != nil {
			return nil, err
		}
		w.pids = append(w.pids, pids)
		w.at = append(w.at, resident(pids))
	}
	w.most = slices.Clone(w.at)
	w.tasks.Go(func() error {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				for i, pids := range w.pids {
					w.most[i] = max(w.most[i], resident(pids))
				}
			case <-w.over:
				return nil
			}
		}
	})
	return w, nil
}

func (w *watch) stop() {
	if !w.stopped {
		w.stopped = true
		close(w.over)
		_ = w.tasks.Wait()
	}
}

func (w *watch) judge() {
	var list []string
	for i, n := range w.s.nodes() {
		grown := w.most[i] - w.at[i]
		w.s.require(w.at[i] > 0, "the memory of the %s cannot be known", n.name)
		w.s.require(grown <= awayGrowth, "the %s with its plugins grew by %d MiB", n.name, grown>>20)
		list = append(list, fmt.Sprintf("%s %d MiB (+%d)", n.name, w.most[i]>>20, grown>>20))
	}
	w.s.note("most memory meanwhile: %s", strings.Join(list, ", "))
}

func judgeAway(s *stage, _ *ledger, r *Result) {
	s.require(r.Stats[secondSender].Acked > 0, "the second sender sent nothing")
}
