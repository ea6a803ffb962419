package demo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// Options are a run's.
type Options struct {
	// PluginsDir and Lock are plugins.dir and plugins.lock of both nodes.
	PluginsDir, Lock string
	// Rows are those to run.
	Rows []Row
	// Count is how many notifications a row sends, beside END.
	Count int
	// Seed makes what is random in a row.
	Seed uint64
	// DefaultTimeouts leaves the timeouts of calls to frozen peers as they are
	// if nothing is configured.
	DefaultTimeouts bool
	// Hosts are where the nodes run, the sender on the first and the receiver on
	// the last; none is here. Hosts are emulated, and may take their time.
	Hosts []lab.Host
	// Simulate runs the rows of RDMA on simulated devices.
	Simulate bool
	// NodeArgs follow the hidden command's name, and Stderr takes what the
	// nodes log; nil keeps the end of it.
	NodeArgs []string
	Stderr   io.Writer
	// Report is called with each row as it finishes, Progress several times a
	// second while it runs.
	Report   func(Result)
	Progress func(Row, Progress)
}

// Progress is how far a row is.
type Progress struct{ Sent, Received, Count int }

// Result is how a row went.
type Result struct {
	Row
	Holds bool `json:"holds"`
	// Skipped is why the row could not be run, or empty.
	Skipped  string   `json:"skipped,omitempty"`
	Problems []string `json:"problems,omitempty"`
	Tally
	// Resent and HandedOver are the sender's counts, Suppressed the copies
	// that the receiver's engine recognised.
	Resent     uint64   `json:"resent"`
	HandedOver uint64   `json:"handed_over"`
	Suppressed uint64   `json:"suppressed"`
	Faults     []*Fault `json:"faults,omitempty"`
	Notes      []string `json:"notes,omitempty"`
	GapMS      float64  `json:"longest_gap_ms"`
	SlowestMS  float64  `json:"slowest_ms"`
	TookMS     float64  `json:"took_ms"`
	// Stats are the engines' own counts, by node.
	Stats map[string]engine.Stats `json:"stats"`
	// Words are the ends of what the nodes logged, if the row does not hold.
	Words map[string]string `json:"logs,omitempty"`
}

// rowTimeout bounds a row: longer than any notification's deadline.
const rowTimeout = 60 * time.Second

// firstCycle is what a fault takes as long as nothing is known of it.
const firstCycle = 400 * time.Millisecond

// settle is how long a row listens after END, for what should not come.
const settle = 250 * time.Millisecond

// Run runs the rows. It returns whether all held; an error means that the
// table could not be run.
func Run(ctx context.Context, o Options) (bool, error) {
	if len(o.Rows) > 0 { // they are of one table
		if err := o.setup(o.Rows[0], senderName, anyPort).Check(); err != nil {
			return false, err
		}
		if o.Rows[0].transports[0] == rdma {
			if err := o.needDevices(ctx); err != nil {
				return false, err
			}
		}
	}
	defer lab.Sweep()
	all := true
	for _, row := range o.Rows {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		r := Result{Row: row, Skipped: o.missing(row)}
		if r.Skipped == "" {
			var err error
			if r, err = o.run(ctx, row); err != nil {
				return false, err
			}
		}
		all = all && (r.Holds || r.Skipped != "")
		o.Report(r)
	}
	return all, nil
}

// missing says why a row cannot be run, or nothing.
func (o Options) missing(row Row) string {
	if row.unfit != nil {
		if why := row.unfit(o); why != "" {
			return why
		}
	}
	if row.plugin == "" {
		return ""
	}
	x := o.setup(row, senderName, anyPort)
	x.Plugins = map[string]string{row.transports[0]: row.plugin}
	if err := x.Check(); err != nil {
		return fmt.Sprintf("it needs hawser-%s, which packages leave out: %v", row.plugin, err)
	}
	return ""
}

// run runs one row. An error means that there was nothing to judge.
func (o Options) run(ctx context.Context, row Row) (Result, error) {
	began := time.Now()
	if row.count > 0 {
		o.Count = row.count
	}
	s := &stage{o: o, row: row, ledger: newLedger(), random: rand.New(rand.NewPCG(o.Seed, 0)), left: max(row.kills, 1), cycle: firstCycle * o.slow()}
	limit := o.slow() * cmp.Or(row.limit, rowTimeout+time.Duration(row.waits)*o.callTimeout())
	rowCtx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the row took longer than %v", limit))
	defer cancel()
	stopProgress := s.progress(rowCtx)
	defer stopProgress()
	defer s.close()
	if err := s.prepare(); err != nil {
		return Result{}, err
	}
	if err := s.start(rowCtx); err != nil {
		return Result{}, errors.Join(context.Cause(ctx), err)
	}
	if err := s.play(rowCtx); err != nil {
		if ctx.Err() != nil {
			return Result{}, context.Cause(ctx)
		}
		s.problems = append(s.problems, err.Error())
	}
	r := Result{Row: row}
	s.measure(&r)
	s.judge(&r)
	if !r.Holds {
		r.Words = map[string]string{}
		for _, n := range s.nodes() {
			r.Words[n.name] = n.Words()
		}
	}
	stopProgress()
	r.TookMS = milliseconds(time.Since(began))
	return r, nil
}

// play sends, lets the faults happen, and waits for the end.
func (s *stage) play(ctx context.Context) error {
	begin := s.row.begin
	if begin == nil {
		begin = func(ctx context.Context, s *stage) error { return s.send(ctx) }
	}
	if err := begin(ctx, s); err != nil {
		return err
	}
	if s.row.faults != nil {
		if err := s.row.faults(ctx, s); err != nil {
			return err
		}
	}
	if err := s.ledger.await(ctx, "all to have ended", func(l *ledger) bool { return l.dones > s.held }); err != nil {
		return err
	}
	err := s.ledger.await(ctx, "END to arrive", func(l *ledger) bool {
		return len(l.arrived) > 0 && l.arrived[len(l.arrived)-1].Name == endName
	})
	sleep(ctx, settle)
	return err
}

// nodes are all of the row's.
func (s *stage) nodes() []*peer { return append([]*peer{s.sender, s.receiver}, s.others...) }

// measure asks the nodes for their counts.
func (s *stage) measure(r *Result) {
	r.Stats = map[string]engine.Stats{}
	for _, n := range s.nodes() {
		st, err := n.stats(context.Background())
		if err != nil {
			s.problems = append(s.problems, err.Error())
			continue
		}
		r.Stats[n.name] = st
	}
	r.Resent, r.HandedOver = r.Stats[senderName].Resent, r.Stats[senderName].HandedOver
	r.Suppressed = r.Stats[receiverName].Duplicates
}

// judge says whether the row holds.
func (s *stage) judge(r *Result) {
	l := s.ledger.copy()
	r.Tally = l.tally(s.o.Count)
	for _, f := range s.faults {
		f.At, f.Received = l.before(f.when)
		s.require(f.At > 0 && f.At < s.o.Count, "%s: not mid-stream, %d of %d had been sent", f.What, f.At, s.o.Count)
	}
	s.problems = append(s.problems, r.problems()...)
	s.require(r.Taken == 0 || s.row.taken, "%d were never acknowledged, only taken", r.Taken)
	if !s.row.noTransfers {
		written := r.Stats[senderName].OpsDone
		s.require(r.Transfers > 0 && written >= uint64(r.Transfers), "%d notifications of transfers arrived, of %d that were done", r.Transfers, written)
	}
	if !s.row.partial {
		s.problems = append(s.problems, r.complete()...)
		if i := slices.IndexFunc(l.ended, func(e ending) bool { return !e.Acked }); i >= 0 {
			s.require(false, "one of the failures: %s", l.ended[i].Error)
		}
	}
	if s.row.judge != nil {
		s.row.judge(s, l, r)
	}
	r.GapMS, r.SlowestMS = milliseconds(r.LongestGap), milliseconds(r.Slowest)
	r.Faults, r.Notes, r.Problems = s.faults, s.notes, s.problems
	r.Holds = len(r.Problems) == 0
}

// progress tells how far the row is until the returned function is called.
func (s *stage) progress(ctx context.Context) (stop func()) {
	if s.o.Progress == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				sent, received := s.ledger.counts()
				s.o.Progress(s.row, Progress{sent, received, s.o.Count})
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Choose picks rows of a set by number, name or a part of the name or the
// scenario that only one has.
func Choose(rows []Row, names []string) ([]Row, error) {
	if len(names) == 0 {
		return rows, nil
	}
	var chosen []Row
	for _, n := range names {
		row, err := choose(rows, n)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, row)
	}
	return chosen, nil
}

func choose(rows []Row, name string) (Row, error) {
	var matches []Row
	want := strings.ToLower(strings.TrimSpace(name))
	for _, row := range rows {
		if want == row.Name || want == strings.ToLower(row.Scenario) || want == fmt.Sprint(row.Number) {
			return row, nil
		}
		if want != "" && (strings.Contains(row.Name, want) || strings.Contains(strings.ToLower(row.Scenario), want)) {
			matches = append(matches, row)
		}
	}
	if len(matches) == 1 {
		return matches[0], nil
	}
	if len(matches) > 1 {
		return Row{}, fmt.Errorf("more than one row matches %q: %s", name, quoted(matches))
	}
	return Row{}, fmt.Errorf("no row is called %q; there are %s", name, quoted(rows))
}

func quoted(rows []Row) string {
	var names []string
	for _, row := range rows {
		names = append(names, strconv.Quote(row.Name))
	}
	return strings.Join(names, ", ")
}
