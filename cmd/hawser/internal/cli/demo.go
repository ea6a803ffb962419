package cli

import (
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/demo"
	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

func newDemo() *cobra.Command {
	var (
		f       demoFlags
		command = &cobra.Command{
			Use:   "demo",
			Short: "Two nodes, thousands of notifications, faults, and a table of what arrived",
			Long: `Starts two nodes on this machine, each with its plugins in processes of their
own, and sends 4000 notifications from one to the other in each row of a table:
2000 that follow a write into the receiver's memory, 2000 that stand alone, and
an END marker when all of them have ended. Meanwhile plugins and nodes are killed,
stopped and taken away. A row holds if every notification arrived, each once, and
none before the bytes that were written.

Each row tells which transports carried how many, at which notification each
fault landed, and how it shows that the fault really happened. Exits with 0 if
all rows hold, with 2 if one does not, and with 3 if there is nothing to run
them on: --set rdma without --simulate needs an RDMA device.

The rows, which --row runs alone by number, name or a part of one:
` + rowsHelp(),
			Args: noArgs,
		}
	)
	flags := command.Flags()
	flags.StringArrayVar(&f.rows, "row", nil, "run this row only: a number, a name or a part of one; may be repeated")
	flags.StringVar(&f.set, "set", setPlain, "the table of rows: plain, or rdma (rdma and tcp, on this machine's devices)")
	flags.BoolVar(&f.simulate, "simulate", false, "with --set rdma: on simulated devices")
	flags.StringVar(&f.hosts, "hosts", "", "with --set rdma: on the virtual hosts that this file of the lab names")
	flags.BoolVar(&f.list, "list", false, "list the rows and run nothing")
	flags.Uint64Var(&f.seed, "seed", 0, "make the random moments from this number (default: a random one)")
	flags.IntVar(&f.count, "count", 4000, fmt.Sprintf("notifications in a row, %d to %d", minDemo, maxDemo))
	flags.StringVar(&f.pluginsDir, "plugins-dir", "", "where the plugins' binaries are looked for first (then: HAWSER_PLUGIN_PATH, and beside this program)")
	flags.StringVar(&f.lock, "plugins-lock", "", "file of the binaries' checksums (default: plugins.lock beside them)")
	flags.BoolVar(&f.timeouts, "default-timeouts", false, "leave the timeouts of calls to frozen peers at 30 s (here: 2 s)")
	flags.BoolVarP(&f.verbose, "verbose", "v", false, "print what the nodes log")
	f.output = outputFlag(command)
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		if !cmd.Flags().Changed("seed") {
			f.seed = rand.Uint64N(1 << 32)
		}
		return f.run(cmd)
	}
	return command
}

type demoFlags struct {
	rows             []string
	set, hosts       string
	simulate         bool
	list, verbose    bool
	timeouts         bool
	seed             uint64
	count            int
	pluginsDir, lock string
	output           *output
}

// The tables of rows.
const (
	setPlain = "plain"
	setRDMA  = "rdma"
)

// minDemo is the smallest number of notifications in which ten faults fit,
// maxDemo what the row of a million sends.
const (
	minDemo = 400
	maxDemo = 1_000_000
)

func (f *demoFlags) run(cmd *cobra.Command) error {
	table := demo.Rows()
	switch f.set {
	case setPlain:
		if f.simulate || f.hosts != "" {
			return usageError("--simulate and --hosts are for --set rdma")
		}
	case setRDMA:
		if f.simulate && f.hosts != "" {
			return usageError("either --simulate or --hosts")
		}
		table = demo.RDMARows()
	default:
		return usageError("--set must be plain or rdma, not %q", f.set)
	}
	rows, err := demo.Choose(table, f.rows)
	if err != nil {
		return usageError("--row: %v", err)
	}
	if f.count < minDemo || f.count > maxDemo {
		return usageError("--count must be %d to %d, not %d", minDemo, maxDemo, f.count)
	}
	if f.list {
		return f.printRows(cmd.OutOrStdout(), rows)
	}
	if err := pluginsDirThere(engine.Config{Plugins: engine.PluginsConfig{Dir: f.pluginsDir}}, true); err != nil {
		return err
	}
	var hosts []lab.Host
	if f.hosts != "" {
		if hosts, err = demo.Hosts(cmd.Context(), f.hosts); err != nil {
			return err
		}
	}
	o := demo.Options{
		Hosts: hosts, Simulate: f.simulate,
		PluginsDir: f.pluginsDir, Lock: f.lock, Rows: rows, Count: f.count, Seed: f.seed,
		DefaultTimeouts: f.timeouts,
		NodeArgs:        []string{"--log-level", "warn"},
	}
	if f.verbose {
		o.NodeArgs, o.Stderr = []string{"--log-level", "info"}, cmd.ErrOrStderr()
	}
	bar := newStatus(cmd.ErrOrStderr())
	defer bar.clear()
	o.Progress = func(row demo.Row, p demo.Progress) {
		bar.show(fmt.Sprintf("%s: %d of %d sent, %d received", row.Scenario, min(p.Sent, p.Count), p.Count, p.Received))
	}
	out, held, skipped := cmd.OutOrStdout(), 0, 0
	if *f.output == outputText {
		fmt.Fprintf(out, "Two nodes, each with its plugins in processes of their own; %d notifications a row; seed %d.\n", f.count, f.seed)
	}
	o.Report = func(r demo.Result) {
		bar.clear()
		if r.Holds {
			held++
		}
		if r.Skipped != "" {
			skipped++
		}
		if *f.output == outputText {
			demo.PrintText(out, r)
		} else {
			demo.PrintJSON(out, r)
		}
	}
	all, err := demo.Run(cmd.Context(), o)
	bar.clear()
	if err != nil {
		return err
	}
	return f.summary(out, all, held, skipped, len(rows))
}

// summary is the last line.
func (f *demoFlags) summary(out io.Writer, all bool, held, skipped, rows int) error {
	if *f.output == outputJSON {
		_ = line(out, struct {
			Holds   bool   `json:"holds"`
			Held    int    `json:"rows_held"`
			Skipped int    `json:"rows_skipped"`
			Rows    int    `json:"rows"`
			Seed    uint64 `json:"seed"`
		}{all, held, skipped, rows, f.seed})
	} else {
		fmt.Fprintf(out, "%d of %d rows hold.\n", held, rows)
		if skipped > 0 {
			fmt.Fprintf(out, "%d could not be run.\n", skipped)
		}
	}
	if !all {
		return silently(exitFailed)
	}
	return nil
}

func (f *demoFlags) printRows(out io.Writer, rows []demo.Row) error {
	if *f.output == outputJSON {
		return document(out, rows)
	}
	listRows(out, rows)
	return nil
}

func listRows(out io.Writer, rows []demo.Row) {
	for _, r := range rows {
		fmt.Fprintf(out, "%2d  %-18s  %s\n", r.Number, r.Name, r.Scenario)
	}
}

// rowsHelp is the list of all rows for the command's help.
func rowsHelp() string {
	var b strings.Builder
	listRows(&b, demo.Rows())
	return strings.TrimSuffix(b.String(), "\n")
}

func newDemoNode() *cobra.Command {
	c := &cobra.Command{Use: demo.NodeCommand, Hidden: true, Args: noArgs}
	level := logFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return demo.ServeNode(cmd.Context(), input(cmd), cmd.OutOrStdout(), newLogger(cmd.ErrOrStderr(), *level))
	}
	return c
}

// input is stdin as something that can be closed.
func input(cmd *cobra.Command) io.ReadCloser {
	if c, ok := cmd.InOrStdin().(io.ReadCloser); ok {
		return c
	}
	return io.NopCloser(cmd.InOrStdin())
}

// newLogger logs to w.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}
