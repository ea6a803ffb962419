package cli

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

func newConfig() *cobra.Command {
	return group("config", "Check, show and describe the configuration",
		newConfigCheck(), newConfigShow(), newConfigSchema())
}

// faultJSON is one fault of a configuration.
type faultJSON struct {
	File    string `json:"file,omitempty"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Key     string `json:"key,omitempty"`
	Message string `json:"message"`
}

type checkJSON struct {
	File     string      `json:"file,omitempty"`
	OK       bool        `json:"ok"`
	Faults   []faultJSON `json:"faults"`
	Warnings []string    `json:"warnings"`
}

func newConfigCheck() *cobra.Command {
	var (
		f       engineFlags
		strict  bool
		o       *output
		command = &cobra.Command{
			Use:   "check [FILE]",
			Short: "Check a configuration file",
			Long: `Checks a configuration file and the overrides in the environment, and names
each fault with file, line and column. Each transport's plugin is asked with
--describe whether it accepts the transport's settings; one that is missing or
is not the approved binary is a warning, since the engine goes on without it, or
with --strict a fault. The files that security names are read and checked.

Exits with 0 if there is no fault, else with 1.`,
			Args: rangeArgs(0, 1, ""),
		}
	)
	f.addConfigFlags(command)
	command.Flags().BoolVar(&strict, "strict", false, "warnings are faults")
	o = outputFlag(command)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.file(args); err != nil {
			return err
		}
		result := f.check(cmd.Context(), strict)
		if cmd.Context().Err() != nil {
			return context.Cause(cmd.Context())
		}
		return result.print(cmd, *o)
	}
	return command
}

// file takes the file from an argument or --config.
func (f *engineFlags) file(args []string) error {
	switch {
	case len(args) == 1 && f.config != "":
		return usageError("FILE and --config exclude each other")
	case len(args) == 1:
		f.config = args[0]
	case f.config == "":
		f.config = os.Getenv(configVariable)
	}
	return nil
}

func (f *engineFlags) check(ctx context.Context, strict bool) checkJSON {
	r := checkJSON{File: f.config, Faults: []faultJSON{}, Warnings: []string{}}
	loaded, err := f.read(ctx)
	var cfg engine.Config
	if err == nil {
		cfg, err = f.apply(loaded.Config)
	}
	if err == nil {
		err = loaded.CheckFiles() // no flag names one
	}
	if err != nil {
		r.Faults = faultsOf(err)
		return r
	}
	loaded.Config = cfg
	faults, warnings, err := loaded.CheckPlugins(ctx)
	if len(faults) > 0 {
		r.Faults = faultsOf(faults)
	}
	var other []error
	if err != nil {
		other = append(other, err)
	}
	if strict {
		other, warnings = append(other, warnings...), nil
	}
	for _, fault := range other {
		r.Faults = append(r.Faults, faultJSON{File: f.config, Message: fault.Error()})
	}
	for _, w := range warnings {
		r.Warnings = append(r.Warnings, w.Error())
	}
	r.OK = len(r.Faults) == 0
	return r
}

func faultsOf(err error) []faultJSON {
	var all engine.ConfigErrors
	if !errors.As(err, &all) {
		return []faultJSON{{Message: err.Error()}}
	}
	var list []faultJSON
	for _, e := range all {
		list = append(list, faultJSON{e.Source, e.Line, e.Column, e.Key, e.Message})
	}
	return list
}

func (r checkJSON) print(cmd *cobra.Command, o output) error {
	if o == outputJSON {
		if err := document(cmd.OutOrStdout(), r); err != nil {
			return err
		}
	} else {
		for _, f := range r.Faults {
			fmt.Fprintln(cmd.ErrOrStderr(), f)
		}
		for _, w := range r.Warnings {
			fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
		}
		if r.OK {
			fmt.Fprintf(cmd.OutOrStdout(), "%s: ok\n", orDefaults(r.File))
		}
	}
	if !r.OK {
		return silently(exitUsage)
	}
	return nil
}

func orDefaults(file string) string {
	if file == "" {
		return "the defaults and the environment"
	}
	return file
}

// String is the fault as compilers write it.
func (f faultJSON) String() string {
	at := f.File
	if f.Line > 0 {
		at = fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
	}
	text := f.Message
	if f.Key != "" {
		text = f.Key + ": " + text
	}
	if at != "" {
		text = at + ": " + text
	}
	return text
}

func newConfigShow() *cobra.Command {
	var (
		f       engineFlags
		command = &cobra.Command{
			Use:   "show [FILE]",
			Short: "Show the configuration that would be used, and where each value comes from",
			Args:  rangeArgs(0, 1, ""),
		}
	)
	command.Flags().StringVar(&f.config, "config", "", "configuration file (default: $"+configVariable+", else none)")
	o := outputFlag(command)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if err := f.file(args); err != nil {
			return err
		}
		loaded, err := f.read(cmd.Context())
		if err != nil {
			return err
		}
		if *o == outputJSON {
			return document(cmd.OutOrStdout(), loaded.Settings())
		}
		_, err = cmd.OutOrStdout().Write(loaded.Show())
		return err
	}
	return command
}

func newConfigSchema() *cobra.Command {
	command := &cobra.Command{
		Use:   "schema",
		Short: "Print the configuration file's JSON schema, for editors and checks",
		Args:  noArgs,
	}
	outputFlag(command) // it is JSON either way
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		return document(cmd.OutOrStdout(), engine.ConfigSchema())
	}
	return command
}
