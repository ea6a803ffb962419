package cli

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

type versionJSON struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Contract int    `json:"contract"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func newVersion() *cobra.Command {
	command := &cobra.Command{Use: "version", Short: "Print the version", Args: noArgs}
	o := outputFlag(command)
	command.RunE = func(cmd *cobra.Command, _ []string) error {
		v := version()
		if *o == outputJSON {
			return document(cmd.OutOrStdout(), v)
		}
		revision := ""
		if v.Revision != "" {
			revision = " " + v.Revision[:min(12, len(v.Revision))]
			if v.Modified {
				revision += "+changes"
			}
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "hawser %s%s (transport contract %d, %s, %s)\n",
			v.Version, revision, v.Contract, v.Go, v.Platform)
		return err
	}
	return command
}

// version is what the toolchain wrote into the binary.
func version() versionJSON {
	v := versionJSON{Version: "(devel)", Contract: engine.PluginContract, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}
