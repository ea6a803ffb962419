package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/benchnode"
)

type benchTransferFlags struct {
	benchCommon
	o          benchnode.MoveOptions
	transports []string
	ops        []string
}

func newBenchTransfer() *cobra.Command {
	b := benchTransferFlags{}
	c := &cobra.Command{
		Use:   "transfer",
		Short: "Reads and writes of memory between two nodes, beside a plain TCP copy",
		Long: `Starts two nodes as processes, with their plugins, and moves bytes between a region
of each: for every transport, kind of op and size,

  rate   bytes a second with a window of ops under way
  one    how long one op takes with none beside it, p50

and the same for a plain program: the same bytes between the same memory over one
TCP connection of the two processes, with nothing between. Memory is what nodes and
plugins have of their own together, without the regions; growth is how much higher
it was in the second half of a measurement than in the first, in the worst round.
The ratio is that of the two rates of one round. Each round has fresh processes, and
they take turns to go first. That what was moved is what was there is checked each time.`,
		Args: noArgs,
	}
	flags := c.Flags()
	flags.StringSliceVar(&b.transports, "transport", []string{"tcp"}, "the transports to measure")
	flags.StringSliceVar(&b.ops, "op", []string{"write", "read"}, "the kinds of ops")
	flags.IntSliceVar(&b.o.Sizes, "size", []int{4 << 10, 256 << 10, 16 << 20}, "bytes of one op")
	flags.IntVar(&b.o.Window, "window", 4, "how many ops are under way")
	flags.IntVar(&b.o.Bytes, "bytes", 512<<20, "about how many bytes each measurement moves; of small ops fewer")
	b.add(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return b.run(cmd) }
	return c
}

// benchTransferJSON is a run for programs.
type benchTransferJSON struct {
	Window  int           `json:"window"`
	Awake   bool          `json:"awake"`
	Rounds  [][]movedJSON `json:"rounds"`
	Medians []movedMedian `json:"medians"`
}

// movedJSON is one round's measurement.
type movedJSON struct {
	Transport string `json:"transport"`
	benchnode.Moved
}

// movedMedian holds the medians of what the rounds measured, and the ratio's
// range.
type movedMedian struct {
	Transport      string  `json:"transport"`
	Op             string  `json:"op"`
	Size           int     `json:"size"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	PlainPerSecond float64 `json:"plain_bytes_per_second"`
	Ratio          float64 `json:"ratio"`
	LowestRatio    float64 `json:"lowest_ratio"`
	HighestRatio   float64 `json:"highest_ratio"`
	P50US          float64 `json:"p50_us"`
	PlainP50US     float64 `json:"plain_p50_us"`
	// Memory has the highest figures of all rounds.
	Memory benchnode.Footprint `json:"memory"`
}

// maxBenchMemory bounds the memory of each node.
const maxBenchMemory = 1 << 30

func (b *benchTransferFlags) check() error {
	if b.rounds < 1 || b.o.Window < 1 || b.o.Bytes < 1 {
		return usageError("--rounds, --window and --bytes must be at least 1")
	}
	if len(b.transports) == 0 || len(b.ops) == 0 || len(b.o.Sizes) == 0 {
		return usageError("--transport, --op and --size name one or more each")
	}
	for i, size := range b.o.Sizes {
		if slices.Contains(b.o.Sizes[:i], size) {
			return usageError("--size names %d twice: once is enough", size)
		}
		if size < 1 || size > maxBenchMemory/b.o.Window {
			return usageError("--size must be 1 to %d, so that %d of them are %d bytes at most, not %d", maxBenchMemory/b.o.Window, b.o.Window, maxBenchMemory, size)
		}
	}
	for i, op := range b.ops {
		if op != "read" && op != "write" {
			return usageError("--op is read or write, not %q", op)
		}
		if slices.Contains(b.ops[:i], op) {
			return usageError("--op names %s twice: once is enough", op)
		}
		b.o.Writes = append(b.o.Writes, op == "write")
	}
	b.o.NodeArgs = []string{"--log-level", "error"}
	if _, err := chooseTransports(nil, b.transports); err != nil {
		return usageError("--transport: %v", err)
	}
	for _, t := range b.transports {
		if _, err := b.setup(t).Config().Effective(); err != nil {
			return usageError("%w", err)
		}
	}
	return pluginsDirThere(b.setup(b.transports[0]).Config(), true)
}

func (b *benchTransferFlags) run(cmd *cobra.Command) error {
	if err := b.check(); err != nil {
		return err
	}
	result := benchTransferJSON{Window: b.o.Window, Awake: b.awake}
	err := b.eachRound(cmd, func(ctx context.Context, i int) error {
		var round []movedJSON
		for j := range b.transports {
			o := b.o
			t := b.transports[(i+j)%len(b.transports)]
			o.Setup, o.PlainFirst = b.setup(t), i%2 == 1
			list, err := benchnode.RunMove(ctx, o)
			if err != nil {
				return fmt.Errorf("%s: %w", t, err)
			}
			for _, m := range list {
				round = append(round, movedJSON{t, m})
			}
		}
		result.Rounds = append(result.Rounds, round)
		return nil
	})
	if err != nil {
		return err
	}
	result.Medians = b.medians(result.Rounds)
	if *b.output == outputJSON {
		return document(cmd.OutOrStdout(), result)
	}
	result.print(cmd.OutOrStdout())
	return nil
}

// medians are in the order of the flags.
func (b *benchTransferFlags) medians(rounds [][]movedJSON) (list []movedMedian) {
	for _, t := range b.transports {
		for _, size := range b.o.Sizes {
			for _, op := range b.ops {
				var rate, plain, ratio, p50, plainP50 []float64
				var memory benchnode.Footprint
				for _, m := range slices.Concat(rounds...) {
					if m.Transport == t && m.Size == size && m.Op == op {
						rate, plain, ratio = append(rate, m.Transfer.BytesPerSecond), append(plain, m.Plain.BytesPerSecond), append(ratio, m.Ratio)
						p50, plainP50 = append(p50, m.Transfer.P50US), append(plainP50, m.Plain.P50US)
						memory.Highest, memory.Growth = max(memory.Highest, m.Memory.Highest), max(memory.Growth, m.Memory.Growth)
					}
				}
				list = append(list, movedMedian{t, op, size, median(rate), median(plain), median(ratio), slices.Min(ratio), slices.Max(ratio), median(p50), median(plainP50), memory})
			}
		}
	}
	return list
}

func (b benchTransferJSON) print(w io.Writer) {
	fmt.Fprintf(w, "%d rounds, %d ops under way; medians of the rounds, the ratio of the same round (lowest to highest)\n", len(b.Rounds), b.Window)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(table, strings.Join([]string{"TRANSPORT", "OP", "BYTES", "MB/S", "PLAIN TCP", "RATIO", "", "ONE, US", "PLAIN TCP", "MEMORY", "GROWTH", ""}, "\t"))
	for _, m := range b.Medians {
		fmt.Fprintf(table, "%s\t%s\t%d\t%.0f\t%.0f\t%.2f\t(%.2f to %.2f)\t%.0f\t%.0f\t%.1f MB\t%.1f MB\t\n", m.Transport, m.Op, m.Size,
			m.BytesPerSecond/1e6, m.PlainPerSecond/1e6, m.Ratio, m.LowestRatio, m.HighestRatio, m.P50US, m.PlainP50US, float64(m.Memory.Highest)/1e6, float64(m.Memory.Growth)/1e6)
	}
	_ = table.Flush()
}
