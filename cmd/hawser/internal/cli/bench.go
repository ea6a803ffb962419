package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/benchnode"
	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

func newBench() *cobra.Command {
	return group("bench", "Measure on this machine", newBenchNotify(), newBenchTransfer())
}

// benchCommon is what all measurements have.
type benchCommon struct {
	rounds     int
	awake      bool
	pluginsDir string
	lock       string
	output     *output
}

func (b *benchCommon) add(c *cobra.Command) {
	flags := c.Flags()
	flags.IntVar(&b.rounds, "rounds", 5, "how many rounds")
	flags.BoolVar(&b.awake, "awake", false, "keep idle processors from sleeping, through /dev/cpu_dma_latency")
	flags.StringVar(&b.pluginsDir, "plugins-dir", "", "where the plugins' binaries are looked for first (then: HAWSER_PLUGIN_PATH, and beside this program)")
	flags.StringVar(&b.lock, "plugins-lock", "", "file of the binaries' checksums (default: plugins.lock beside them)")
	b.output = outputFlag(c)
}

// setup is that of nodes that run one transport.
func (b *benchCommon) setup(transport string) lab.Setup {
	return lab.Setup{Listen: "127.0.0.1:0", PluginsDir: b.pluginsDir, Lock: b.lock, Transports: []string{transport}}
}

// eachRound measures round after round, and says which one it is.
func (b *benchCommon) eachRound(cmd *cobra.Command, measure func(ctx context.Context, i int) error) error {
	if b.awake {
		release, err := stayAwake()
		if err != nil {
			return failed(exitUnable, "--awake: %w", err)
		}
		defer release()
	}
	line := newStatus(cmd.ErrOrStderr())
	defer line.clear()
	for i := range b.rounds {
		line.show(fmt.Sprintf("round %d of %d", i+1, b.rounds))
		if err := measure(cmd.Context(), i); err != nil {
			if cmd.Context().Err() != nil {
				return context.Cause(cmd.Context())
			}
			return fmt.Errorf("round %d: %w", i+1, err)
		}
	}
	return nil
}

type benchFlags struct {
	benchCommon
	o         benchnode.Options
	transport string
}

func newBenchNotify() *cobra.Command {
	b := benchFlags{}
	c := &cobra.Command{
		Use:   "notify",
		Short: "Round trip, burst and rate of notifications between two nodes",
		Long: `Starts two nodes as processes, with their plugins, and measures from one
application to the other and back:

  round trip   a notification and its echo, one at a time; half of it is one way
  burst        so many back to back, from the first Notify to the last
               acknowledgement
  rate         acknowledged notifications a second with a window of them under way

Each round has fresh processes; that what was sent was received is checked. With
-o json all rounds are printed, for programs that compare them.`,
		Args: noArgs,
	}
	flags := c.Flags()
	flags.StringVar(&b.transport, "transport", "tcp", "the transport to measure, e.g. tcp or rpcfallback")
	flags.IntVar(&b.o.Size, "size", 64, "payload in bytes")
	flags.IntVar(&b.o.Pings, "pings", 5000, "round trips in a round; 0 leaves them out")
	flags.IntVar(&b.o.BurstCount, "burst", 2000, "notifications in the burst; 0 leaves it out")
	flags.IntVar(&b.o.RateCount, "rate-count", 100_000, "notifications for the rate; 0 leaves it out")
	flags.IntVar(&b.o.Window, "window", 256, "how many the rate has under way")
	b.add(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return b.run(cmd) }
	return c
}

// benchJSON is a run for programs.
type benchJSON struct {
	Transport string            `json:"transport"`
	Size      int               `json:"size"`
	Awake     bool              `json:"awake"`
	Rounds    []benchnode.Round `json:"rounds"`
	Median    medianJSON        `json:"median"`
}

// medianJSON holds the rounds' medians; 0 is what was left out.
type medianJSON struct {
	RoundTripP50US float64 `json:"round_trip_p50_us"`
	RoundTripP99US float64 `json:"round_trip_p99_us"`
	BurstMS        float64 `json:"burst_ms"`
	RatePerSecond  float64 `json:"rate_per_second"`
}

func (b *benchFlags) check() error {
	for _, n := range []struct {
		flag       string
		value, min int
	}{
		{"rounds", b.rounds, 1}, {"size", b.o.Size, 0}, {"pings", b.o.Pings, 0},
		{"burst", b.o.BurstCount, 0}, {"rate-count", b.o.RateCount, 0}, {"window", b.o.Window, 1},
	} {
		if n.value < n.min {
			return usageError("--%s must be at least %d, not %d", n.flag, n.min, n.value)
		}
	}
	if b.o.Pings+b.o.BurstCount+b.o.RateCount == 0 {
		return usageError("--pings, --burst and --rate-count are all 0: nothing would be measured")
	}
	if _, err := chooseTransports(nil, []string{b.transport}); err != nil {
		return usageError("--transport: %v", err)
	}
	b.o.Setup = b.setup(b.transport)
	b.o.NodeArgs = []string{"--log-level", "error"}
	cfg, err := b.o.Setup.Config().Effective()
	if err != nil {
		return usageError("%w", err)
	}
	const longestName = 5 // of the notifications that are sent
	if limit := cfg.Notification.MaxPayloadBytes - longestName; b.o.Size > limit {
		return usageError("--size must be at most %d, which notification.max_payload_bytes leaves, not %d", limit, b.o.Size)
	}
	return nil
}

func (b *benchFlags) run(cmd *cobra.Command) error {
	if err := b.check(); err != nil {
		return err
	}
	if err := pluginsDirThere(b.o.Setup.Config(), true); err != nil {
		return err
	}
	result := benchJSON{Transport: b.transport, Size: b.o.Size, Awake: b.awake}
	err := b.eachRound(cmd, func(ctx context.Context, _ int) error {
		r, err := benchnode.Run(ctx, b.o)
		result.Rounds = append(result.Rounds, r)
		return err
	})
	if err != nil {
		return err
	}
	result.Median = medians(result.Rounds)
	if *b.output == outputJSON {
		return document(cmd.OutOrStdout(), result)
	}
	result.print(cmd.OutOrStdout())
	return nil
}

// stayAwake keeps processors from sleeping until the returned function is
// called.
func stayAwake() (release func(), err error) {
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 4)); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

func medians(rounds []benchnode.Round) (m medianJSON) {
	var p50, p99, burst, rate []float64
	for _, r := range rounds {
		if r.RoundTrip != nil {
			p50, p99 = append(p50, r.RoundTrip.P50US), append(p99, r.RoundTrip.P99US)
		}
		if r.Burst != nil {
			burst = append(burst, r.Burst.MS)
		}
		if r.Rate != nil {
			rate = append(rate, r.Rate.PerSecond)
		}
	}
	return medianJSON{median(p50), median(p99), median(burst), median(rate)}
}

func median[T cmp.Ordered](values []T) (m T) {
	if len(values) == 0 {
		return m
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func (b benchJSON) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %d bytes, %d rounds; median of the rounds (lowest to highest)\n", b.Transport, b.Size, len(b.Rounds))
	row := func(what, unit string, value func(benchnode.Round) (float64, bool)) {
		var all []float64
		for _, r := range b.Rounds {
			if v, ok := value(r); ok {
				all = append(all, v)
			}
		}
		if len(all) > 0 {
			m := median(all)
			fmt.Fprintf(w, "  %-18s %10.1f %s  (%.1f to %.1f)\n", what, m, unit, all[0], all[len(all)-1])
		}
	}
	trip := func(f func(*benchnode.Latency) float64) func(benchnode.Round) (float64, bool) {
		return func(r benchnode.Round) (float64, bool) {
			if r.RoundTrip == nil {
				return 0, false
			}
			return f(r.RoundTrip), true
		}
	}
	row("round trip p50", "us", trip(func(l *benchnode.Latency) float64 { return l.P50US }))
	row("round trip p99", "us", trip(func(l *benchnode.Latency) float64 { return l.P99US }))
	row("burst", "ms", func(r benchnode.Round) (float64, bool) {
		if r.Burst == nil {
			return 0, false
		}
		return r.Burst.MS, true
	})
	row("rate with acks", "per second", func(r benchnode.Round) (float64, bool) {
		if r.Rate == nil {
			return 0, false
		}
		return r.Rate.PerSecond, true
	})
}

func newBenchNode() *cobra.Command {
	c := &cobra.Command{Use: benchnode.NodeCommand, Hidden: true, Args: noArgs}
	level := logFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return benchnode.ServeNode(cmd.Context(), input(cmd), cmd.OutOrStdout(), newLogger(cmd.ErrOrStderr(), *level))
	}
	return c
}
