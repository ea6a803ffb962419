package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Streams are the process's standard streams.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Run runs the command line and returns the exit code.
func Run(ctx context.Context, args []string, s Streams) int {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	out := &stdout{w: s.Out, ctx: running, cancel: cancel}
	s.Out = out
	root := newRoot(s)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(running)
	code := exitCode(ctx, err)
	lost := out.fault()
	switch {
	case lost != nil && (code != exitInterrupted || ctx.Err() == nil):
		code = exitUnable
		fmt.Fprintf(s.Err, "hawser: standard output cannot be written: %v\n", lost)
	case err == nil || errors.Is(err, errReported):
	case code == exitInterrupted:
		fmt.Fprintln(s.Err, "hawser: interrupted")
		reportJSON(out, cmd, args, code, errInterrupted)
	default:
		report(s.Err, cmd, err)
		reportJSON(out, cmd, args, code, err)
	}
	return code
}

func newRoot(s Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "hawser",
		Short: "Move notifications between processes, whatever fails in between",
		Long: `Hawser moves notifications between processes over whatever transports carry
them best right now. Transports are plugins, processes of their own: they can
crash, hang and be replaced while traffic goes on.

Start with ` + "`hawser demo`" + `, which shows it on this machine.

` + exitCodesHelp,
		SilenceErrors: true, SilenceUsage: true,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(
		newDemo(), newDemoNode(), newNode(), newSend(), newRecv(), newBench(), newBenchNode(),
		newPeers(), newMappings(), newNodeStatus(), newPlugin(), newConfig(), newDoctor(), newVersion(),
	)
	return root
}

// group is a command that only has commands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(commands...)
	return c
}

// suggestionDistance is how many letters a name may be off to be suggested.
const suggestionDistance = 2

// noSuchCommand refuses arguments of a command that only has commands.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = suggestionDistance
	return usageError("unknown command %q for %q%s", args[0], cmd.CommandPath(), didYouMean(cmd.SuggestionsFor(args[0])))
}

// flagError names the flag that was meant.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		return usageError("--%s: %s", invalid.GetFlag().Name, wrongValue(invalid))
	}
	if !errors.As(err, &unknown) {
		return usageError("%v", err)
	}
	// Cobra finds near commands; flags are near by the same measure.
	near := &cobra.Command{SuggestionsMinimumDistance: suggestionDistance}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			near.AddCommand(&cobra.Command{Use: f.Name, Run: func(*cobra.Command, []string) {}})
		}
	})
	var flags []string
	for _, name := range near.SuggestionsFor(unknown.GetSpecifiedName()) {
		flags = append(flags, "--"+name)
	}
	return usageError("%v%s", err, didYouMean(flags))
}

// wrongValue says what is wrong with a flag's value, without the names that
// the language's packages have in their errors.
func wrongValue(e *pflag.InvalidValueError) string {
	value, kind := e.GetValue(), e.GetFlag().Value.Type()
	switch {
	case errors.Is(e, strconv.ErrRange):
		return value + " is too large"
	case kind == "int" || kind == "uint64":
		return fmt.Sprintf("%q is not a whole number", value)
	case kind == "float64":
		return fmt.Sprintf("%q is not a number", value)
	case kind == "duration":
		return fmt.Sprintf("%q is not a duration, such as 500ms or 10s", value)
	case kind == "bool":
		return fmt.Sprintf("%q is not true or false", value)
	case e.GetFlag().Name == "log-level":
		return fmt.Sprintf("%q is not debug, info, warn or error", value)
	default:
		return fmt.Sprintf("%q: %v", value, errors.Unwrap(e))
	}
}

func didYouMean(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return "; did you mean " + strings.Join(names, " or ") + "?"
}

// reportJSON tells programs of an error, on one line, if -o json was asked for.
func reportJSON(w io.Writer, cmd *cobra.Command, args []string, code int, err error) {
	asked := strings.Contains(" "+strings.Join(args, " ")+" ", " -o json ") // a flag before it may be wrong
	if cmd == nil || cmd.Flags().Lookup("output") == nil {
		return
	}
	if !asked && cmd.Flags().Lookup("output").Value.String() != string(outputJSON) {
		return
	}
	_ = line(w, struct {
		Error    string `json:"error"`
		ExitCode int    `json:"exit_code"`
	}{strings.TrimSpace(err.Error()), code})
}

// report prints an error, each line of it under the program's name.
func report(w io.Writer, cmd *cobra.Command, err error) {
	for line := range strings.SplitSeq(strings.TrimSpace(err.Error()), "\n") {
		fmt.Fprintf(w, "hawser: %s\n", line)
	}
	var usage *failure
	if errors.As(err, &usage) && usage.help && cmd != nil {
		fmt.Fprintf(w, "hawser: see `%s --help`\n", cmd.CommandPath())
	}
}

// rangeArgs wants a number of arguments.
func rangeArgs(from, to int, what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < from:
			return usageError("missing argument: %s", what)
		case len(args) > to && to == 0:
			return usageError("unexpected argument %q: this command takes none", args[0])
		case len(args) > to:
			return usageError("unexpected argument %q", args[to])
		}
		return nil
	}
}

var noArgs = rangeArgs(0, 0, "")
