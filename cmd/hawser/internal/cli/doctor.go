package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

func newDoctor() *cobra.Command {
	var (
		f       engineFlags
		command = &cobra.Command{
			Use:   "doctor [TRANSPORT...]",
			Short: "Find out what this machine lacks for the transports, and what to do about it",
			Long: `Examines this machine for the configured transports, or for those that are named:
their binaries as an engine would run them, their settings and addresses, and
what each plugin itself finds of devices, permissions, limits and libraries. It
takes nothing from nodes that run here. A plugin that hangs or crashes is a
finding; plugins.start_timeout_ms bounds it.

What is found holds for the user, the limits and the container that this command
runs in: run it as the node is run.

  ok       as it should be
  warning  the transport can carry, with less than it could
  problem  the transport cannot carry because of this
  absent   this machine does not have what the transport is for. That counts as
           a problem of a transport that is listed or named, and not of one that
           is only tried by default.

Exits with 0 if a transport can carry and there is no problem, else with 2.`,
		}
	)
	f.addConfigFlags(command)
	o := outputFlag(command)
	command.RunE = func(cmd *cobra.Command, names []string) error {
		cfg, err := f.load(cmd.Context())
		if err != nil {
			return err
		}
		if len(names) > 0 {
			if cfg.Transports, err = chooseTransports(cfg.Transports, names); err != nil {
				return usageError("%v", err)
			}
			cfg.Notification.RPCFallback = new(false)
		}
		here, transports, err := engine.Examine(cmd.Context(), cfg)
		if err != nil {
			return err
		}
		if cmd.Context().Err() != nil {
			return context.Cause(cmd.Context())
		}
		d := diagnosisOf(here, transports)
		if *o == outputJSON {
			err = document(cmd.OutOrStdout(), d)
		} else {
			d.print(cmd.OutOrStdout())
		}
		if err == nil && !d.OK {
			err = silently(exitFailed)
		}
		return err
	}
	return command
}

// diagnosis is what doctor found, for programs.
type diagnosis struct {
	// OK: a transport can carry, and there is no problem.
	OK         bool             `json:"ok"`
	Carry      []string         `json:"carry"`
	Here       []engine.Finding `json:"here"`
	Transports []examined       `json:"transports"`
}

type examined struct {
	Transport string           `json:"transport"`
	Path      string           `json:"path,omitempty"`
	Version   string           `json:"version,omitempty"`
	ByDefault bool             `json:"by_default,omitempty"`
	Carries   bool             `json:"carries"`
	Findings  []engine.Finding `json:"findings"`
}

func diagnosisOf(here []engine.Finding, transports []engine.Examination) diagnosis {
	d := diagnosis{OK: true, Carry: []string{}, Here: here, Transports: []examined{}}
	well := !slices.ContainsFunc(here, func(f engine.Finding) bool { return f.State == engine.FindingProblem })
	for _, x := range transports {
		d.OK = d.OK && !x.Troubled()
		if x.Carries() && well {
			d.Carry = append(d.Carry, x.Transport)
		}
		d.Transports = append(d.Transports, examined{x.Transport, x.Path, x.Version, x.Optional, x.Carries() && well, x.Findings})
	}
	d.OK = d.OK && well && len(d.Carry) > 0
	return d
}

func (d diagnosis) print(w io.Writer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TRANSPORT\tSUBJECT\tSTATE\tFOUND")
	rows := func(of string, findings []engine.Finding) {
		for _, f := range findings {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", of, printableText(f.Subject), f.State, printableText(f.Found))
			if f.Do != "" {
				fmt.Fprintf(table, "\t\t\t  do: %s\n", printableText(f.Do))
			}
			of = ""
		}
	}
	rows("(all)", d.Here)
	var absent []string
	for _, x := range d.Transports {
		rows(x.Transport, x.Findings)
		if x.ByDefault && !x.Carries {
			absent = append(absent, x.Transport)
		}
	}
	_ = table.Flush()
	fmt.Fprintln(w)
	switch {
	case len(d.Carry) == 0:
		fmt.Fprintln(w, "no transport can carry")
	case d.OK && len(absent) > 0:
		fmt.Fprintf(w, "%s can carry; nothing is here for %s (tried by default)\n", strings.Join(d.Carry, ", "), strings.Join(absent, ", "))
	case d.OK:
		fmt.Fprintf(w, "%s can carry\n", strings.Join(d.Carry, ", "))
	default:
		fmt.Fprintf(w, "%s can carry; there are problems\n", strings.Join(d.Carry, ", "))
	}
}
