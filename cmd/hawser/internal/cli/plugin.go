package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

func newPlugin() *cobra.Command {
	return group("plugin", "List, describe and verify plugin binaries; restart a running one",
		newPluginList(), newPluginDescribe(), newPluginVerify(), newPluginRestart())
}

// pluginJSON is a plugin for programs.
type pluginJSON struct {
	Name       string   `json:"name"`
	Transports []string `json:"transports"`
	Path       string   `json:"path,omitempty"`
	SHA256     string   `json:"sha256,omitempty"`
	Approved   string   `json:"approved_sha256,omitempty"`
	State      string   `json:"state"`
	Error      string   `json:"error,omitempty"`
	// Running are its instances in the nodes that run here.
	Running []runningJSON `json:"running,omitempty"`
}

func pluginsJSON(found []engine.PluginInfo) []pluginJSON {
	list := []pluginJSON{}
	for _, p := range found {
		j := pluginJSON{
			Name: p.Name, Transports: append([]string{}, p.Transports...), Path: p.Path,
			SHA256: p.SHA256, Approved: p.Approved, State: string(p.State()),
		}
		if p.Err != nil {
			j.Error = p.Err.Error()
		}
		list = append(list, j)
	}
	return list
}

func newPluginList() *cobra.Command {
	var (
		f       engineFlags
		command = &cobra.Command{
			Use:   "list",
			Short: "List the plugins that were found, where, and whether they are the approved ones",
			Long: `Lists the plugins of the configured transports, those in the plugins'
directories and those in plugins.lock. Nothing is run. Nodes that this user runs
here, or the one that --socket names, are asked for the instances that they run.`,
			Args: noArgs,
		}
	)
	f.addConfigFlags(command)
	socket, o := socketFlag(command), outputFlag(command)
	command.Flags().Lookup("socket").Usage = "ask the node with this admin socket only (default: all nodes that this user runs here)"
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := f.load(cmd.Context())
		if err != nil {
			return err
		}
		found, err := engine.FindPlugins(cfg)
		if err != nil {
			return err
		}
		instances, err := running(cmd.Context(), *socket)
		if err != nil {
			return err
		}
		if *o == outputJSON {
			list := pluginsJSON(found)
			for i, p := range list {
				for _, r := range instances {
					if r.wire == p.Name || slices.Contains(p.Transports, r.Transport) {
						list[i].Running = append(list[i].Running, r)
					}
				}
			}
			return document(cmd.OutOrStdout(), list)
		}
		printPlugins(cmd.OutOrStdout(), found)
		printInstances(cmd.OutOrStdout(), instances)
		fmt.Fprintf(cmd.OutOrStdout(), "\nlooked in: %s\nlock file: %s\n",
			strings.Join(engine.PluginDirs(cfg.Plugins), ", "), engine.PluginLock(cfg.Plugins))
		return nil
	}
	return command
}

func printPlugins(w io.Writer, found []engine.PluginInfo) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PLUGIN\tTRANSPORTS\tSTATE\tSHA-256\tPATH")
	for _, p := range found {
		transports := strings.Join(p.Transports, ",")
		if transports == "" {
			transports = "-"
		}
		sum, path := p.SHA256[:min(12, len(p.SHA256))], p.Path
		if path == "" {
			sum, path = "-", "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", p.Name, transports, p.State(), sum, path)
	}
	_ = table.Flush()
	for _, p := range found {
		if p.Err != nil {
			fmt.Fprintf(w, "%s: %v\n", p.Name, p.Err)
		}
	}
}

func newPluginVerify() *cobra.Command {
	var (
		f       engineFlags
		update  bool
		command = &cobra.Command{
			Use:   "verify [PLUGIN...]",
			Short: "Compare plugin binaries with the checksums in plugins.lock",
			Long: `Compares the plugins' binaries, or those of the named plugins, with the
checksums that the configuration or plugins.lock holds. An engine does not run a
binary that differs from its checksum. With --update the binaries are approved
as they are now: their checksums are written into plugins.lock.

No binary is run, so that this needs none of the hardware that a transport needs,
and says nothing of whether it is there.

Exits with 0 if every binary is the approved one, and with 2 if one has changed,
is missing, or was never approved. With --update it exits with 0 once they are
written; entries of plugins that are no longer found are dropped.`,
		}
	)
	f.addConfigFlags(command)
	command.Flags().BoolVar(&update, "update", false, "write the binaries' checksums into plugins.lock")
	o := outputFlag(command)
	command.RunE = func(cmd *cobra.Command, names []string) error {
		cfg, err := f.load(cmd.Context())
		if err != nil {
			return err
		}
		return verifyPlugins(cmd, cfg, names, update, *o)
	}
	return command
}

// verifyJSON is the result of verify for programs.
type verifyJSON struct {
	OK      bool         `json:"ok"`
	Lock    string       `json:"lock"`
	Updated []string     `json:"updated"`
	Dropped []string     `json:"dropped,omitempty"`
	Plugins []pluginJSON `json:"plugins"`
}

func verifyPlugins(cmd *cobra.Command, cfg engine.Config, names []string, update bool, o output) error {
	var changed, dropped []string
	if update {
		var err error
		if _, changed, dropped, err = engine.UpdatePluginLock(cfg, names...); err != nil {
			return err
		}
	}
	found, err := engine.FindPlugins(cfg)
	if err != nil {
		return err
	}
	if found, err = chosenPlugins(found, names); err != nil {
		return err
	}
	v := verifyJSON{OK: true, Lock: engine.PluginLock(cfg.Plugins), Updated: append([]string{}, changed...), Dropped: dropped, Plugins: pluginsJSON(found)}
	for _, p := range found {
		v.OK = v.OK && (p.State() == engine.PluginApproved || update && p.State() == engine.PluginMissing)
	}
	if o == outputJSON {
		if err := document(cmd.OutOrStdout(), v); err != nil {
			return err
		}
	} else {
		printVerified(cmd.OutOrStdout(), v)
	}
	if !v.OK {
		return silently(exitFailed)
	}
	return nil
}

func chosenPlugins(found []engine.PluginInfo, names []string) ([]engine.PluginInfo, error) {
	if len(names) == 0 {
		return found, nil
	}
	var chosen []engine.PluginInfo
	for _, name := range names {
		i := slices.IndexFunc(found, func(p engine.PluginInfo) bool {
			return p.Name == strings.TrimPrefix(name, "hawser-") || slices.Contains(p.Transports, name)
		})
		if i < 0 {
			return nil, usageError("no plugin %q is configured, found or in the lock; `hawser plugin list` shows them", name)
		}
		chosen = append(chosen, found[i])
	}
	return chosen, nil
}

func printVerified(w io.Writer, v verifyJSON) {
	for _, p := range v.Plugins {
		switch p.State {
		case string(engine.PluginMissing):
			fmt.Fprintf(w, "%s: missing: %s\n", p.Name, p.Error)
		case string(engine.PluginChanged):
			fmt.Fprintf(w, "%s: changed: %s has SHA-256 %s, approved is %s\n", p.Name, p.Path, p.SHA256, p.Approved)
		default:
			fmt.Fprintf(w, "%s: %s: %s has SHA-256 %s\n", p.Name, p.State, p.Path, p.SHA256)
		}
	}
	if len(v.Dropped) > 0 {
		fmt.Fprintf(w, "dropped from %s, since no longer found: %s\n", v.Lock, strings.Join(v.Dropped, ", "))
	}
	switch {
	case len(v.Updated) > 0:
		fmt.Fprintf(w, "written to %s: %s\n", v.Lock, strings.Join(v.Updated, ", "))
	case !v.OK:
		fmt.Fprintf(w, "compared with %s; approve binaries as they are with `hawser plugin verify --update`\n", v.Lock)
	}
}

func newPluginDescribe() *cobra.Command {
	var (
		f       engineFlags
		command = &cobra.Command{
			Use:   "describe PLUGIN|PATH",
			Short: "Ask a plugin what it can do",
			Long: `Runs a plugin's binary with --describe and prints what it says. A plugin that is
named is not run if it is not the approved binary; a path, which has a / in it,
is run as it is.`,
			Args: rangeArgs(1, 1, "a plugin's name, or the path of its binary"),
		}
	)
	f.addConfigFlags(command)
	o := outputFlag(command)
	command.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := f.load(cmd.Context())
		if err != nil {
			return err
		}
		path, d, err := engine.DescribePlugin(cmd.Context(), cfg, args[0])
		if err != nil {
			return err
		}
		j := describedJSON(path, d)
		if *o == outputJSON {
			return document(cmd.OutOrStdout(), j)
		}
		return j.print(cmd.OutOrStdout())
	}
	return command
}

// descriptionJSON is what a plugin says about itself, for programs.
type descriptionJSON struct {
	Path         string          `json:"path"`
	Name         string          `json:"name"`
	Version      string          `json:"version"`
	Contract     int             `json:"contract"`
	Features     []string        `json:"features"`
	Limits       limitsJSON      `json:"limits"`
	SharedDevice bool            `json:"shared_device"`
	Listeners    []listenerJSON  `json:"listeners"`
	ConfigSchema json.RawMessage `json:"config_schema,omitempty"`
}

type limitsJSON struct {
	MaxFrame       int `json:"max_frame"`
	InflightFrames int `json:"inflight_frames"`
	InflightBytes  int `json:"inflight_bytes"`
}

type listenerJSON struct {
	Name    string `json:"name"`
	Key     string `json:"key"`
	Default string `json:"default"`
}

func describedJSON(path string, d engine.PluginDescription) descriptionJSON {
	j := descriptionJSON{
		Path: path, Name: d.Name, Version: d.Version, Contract: d.Contract, Features: []string{},
		Limits: limitsJSON(d.Limits.WithDefaults()), SharedDevice: d.SharedDevice,
		Listeners: []listenerJSON{}, ConfigSchema: d.ConfigSchema,
	}
	for _, f := range d.Features {
		j.Features = append(j.Features, f.String())
	}
	for _, l := range d.Listeners {
		j.Listeners = append(j.Listeners, listenerJSON(l))
	}
	return j
}

func (j descriptionJSON) print(w io.Writer) error {
	shared := "no: the old instance goes before the new one comes"
	if j.SharedDevice {
		shared = "yes"
	}
	fmt.Fprintf(w, "%s %s (%s)\n", j.Name, j.Version, j.Path)
	fmt.Fprintf(w, "  contract            %d\n", j.Contract)
	fmt.Fprintf(w, "  features            %s\n", strings.Join(j.Features, ", "))
	fmt.Fprintf(w, "  largest frame       %d bytes\n", j.Limits.MaxFrame)
	fmt.Fprintf(w, "  under way at most   %d frames, %d bytes\n", j.Limits.InflightFrames, j.Limits.InflightBytes)
	fmt.Fprintf(w, "  two instances       %s\n", shared)
	for _, l := range j.Listeners {
		fmt.Fprintf(w, "  listener %-10s config.%s, default %s\n", l.Name, l.Key, l.Default)
	}
	if len(j.ConfigSchema) == 0 {
		_, err := fmt.Fprintln(w, "  takes no settings")
		return err
	}
	fmt.Fprintln(w, "  settings:")
	return document(indented{w}, j.ConfigSchema)
}

// indented moves what is written to the right.
type indented struct{ w io.Writer }

func (i indented) Write(b []byte) (int, error) {
	text := strings.TrimSuffix(string(b), "\n")
	_, err := io.WriteString(i.w, "    "+strings.ReplaceAll(text, "\n", "\n    ")+"\n")
	return len(b), err
}
