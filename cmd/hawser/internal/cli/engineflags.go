package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

// configVariable names the configuration file if --config does not.
const configVariable = "HAWSER_CONFIG"

// engineFlags are those of every command that opens an engine.
type engineFlags struct {
	config     string
	name       string
	pluginsDir string
	lock       string
	transports []string
	peers      []string
	listen     string
	advertise  string
	level      *slog.Level
	// admin: the command is a node that answers on an admin socket.
	admin       bool
	adminSocket string
	adminHTTP   string
}

// addConfigFlags adds those that say which configuration and plugins count.
func (f *engineFlags) addConfigFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.config, "config", "", "configuration file (default: $"+configVariable+", else none)")
	flags.StringVar(&f.pluginsDir, "plugins-dir", "", "overrides plugins.dir: where the plugins' binaries are looked for first")
	flags.StringVar(&f.lock, "plugins-lock", "", "overrides plugins.lock: file of the binaries' checksums")
}

// add adds those of commands that open an engine.
func (f *engineFlags) add(cmd *cobra.Command) {
	f.addConfigFlags(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&f.transports, "transports", nil, "overrides the transports and their order of preference, e.g. tcp,rpcfallback")
	flags.StringArrayVar(&f.peers, "peer", nil, "adds NAME=HOST:PORT to the static registry; may be repeated")
	f.level = logFlag(cmd)
}

// addListen adds those of commands whose engine peers find by its address.
func (f *engineFlags) addListen(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.listen, "listen", "", "overrides control.listen: the address to listen on; port 0 is a free one")
	flags.StringVar(&f.advertise, "advertise", "", "overrides control.advertise: the address that peers are told")
}

// addAdmin adds those of commands that are asked over an admin socket.
func (f *engineFlags) addAdmin(cmd *cobra.Command) {
	f.admin = true
	flags := cmd.Flags()
	flags.StringVar(&f.adminSocket, "admin-socket", "", "overrides admin.socket: the socket's path, auto or off (default: auto)")
	flags.StringVar(&f.adminHTTP, "admin-http", "", "overrides admin.http: HOST:PORT for health, metrics and a status page")
}

// read reads the configuration file and applies the environment. The file may
// be a pipe: it is read once.
func (f *engineFlags) read(ctx context.Context) (engine.LoadedConfig, error) {
	path := f.config
	if path == "" {
		path = os.Getenv(configVariable)
	}
	loaded, err := interruptible(ctx, func() (engine.LoadedConfig, error) { return engine.ReadConfig(path, os.Environ()) })
	if err != nil && ctx.Err() == nil {
		err = &failure{code: exitUsage, err: err}
	}
	return loaded, err
}

// load reads the configuration file and applies the environment and the flags.
func (f *engineFlags) load(ctx context.Context) (engine.Config, error) {
	loaded, err := f.read(ctx)
	if err != nil {
		return engine.Config{}, err
	}
	return f.apply(loaded.Config)
}

// apply applies the flags.
func (f *engineFlags) apply(cfg engine.Config) (engine.Config, error) {
	for _, o := range []struct {
		value string
		field *string
	}{
		{f.name, &cfg.Node.Name}, {f.listen, &cfg.Control.Listen}, {f.advertise, &cfg.Control.Advertise},
		{f.pluginsDir, &cfg.Plugins.Dir}, {f.lock, &cfg.Plugins.Lock},
		{f.adminSocket, &cfg.Admin.Socket}, {f.adminHTTP, &cfg.Admin.HTTP},
	} {
		if o.value != "" {
			*o.field = o.value
		}
	}
	if f.admin && cfg.Admin.Socket == "" {
		cfg.Admin.Socket = "auto"
	}
	if err := f.addPeers(&cfg); err != nil {
		return engine.Config{}, err
	}
	if f.transports != nil {
		if !slices.ContainsFunc(f.transports, func(s string) bool { return strings.TrimSpace(s) != "" }) {
			return engine.Config{}, usageError("--transports must name at least one transport")
		}
		var err error
		if cfg.Transports, err = chooseTransports(cfg.Transports, f.transports); err != nil {
			return engine.Config{}, usageError("--transports: %v", err)
		}
	}
	if err := pluginsDirThere(cfg, f.pluginsDir != ""); err != nil {
		return engine.Config{}, err
	}
	if _, err := cfg.Effective(); err != nil {
		return engine.Config{}, &failure{code: exitUsage, err: err}
	}
	return cfg, nil
}

// pluginsDirThere wants the directory that was named for the plugins to exist:
// others are searched after it, and would hide that it does not.
func pluginsDirThere(cfg engine.Config, byFlag bool) error {
	dir, what := cfg.Plugins.Dir, "plugins.dir"
	if dir == "" {
		return nil
	}
	if byFlag {
		what = "--plugins-dir"
	}
	st, err := os.Stat(dir)
	switch {
	case err != nil:
		return failed(exitUsage, "%s: %w", what, err)
	case !st.IsDir():
		return failed(exitUsage, "%s: %s is not a directory", what, dir)
	}
	return nil
}

func (f *engineFlags) addPeers(cfg *engine.Config) error {
	for _, p := range f.peers {
		name, address, ok := strings.Cut(p, "=")
		if !ok || name == "" || address == "" {
			return usageError("--peer must be NAME=HOST:PORT, not %q", p)
		}
		if cfg.Registry.Static == nil {
			cfg.Registry.Static = map[string]string{}
		}
		cfg.Registry.Type, cfg.Registry.Static[name] = "static", address
	}
	return nil
}

// chooseTransports keeps the settings of those that were configured. What is
// wrong with the names is not the configuration's fault.
func chooseTransports(configured []engine.TransportConfig, names []string) ([]engine.TransportConfig, error) {
	list := []engine.TransportConfig{}
	for _, name := range names {
		t := engine.TransportConfig{Name: strings.TrimSpace(name)}
		switch {
		case !transportName.MatchString(t.Name):
			return nil, fmt.Errorf("%q is no name of a transport: 1 to 32 of [a-z0-9-]", t.Name)
		case slices.ContainsFunc(list, func(c engine.TransportConfig) bool { return c.Name == t.Name }):
			return nil, fmt.Errorf("%s is named twice", t.Name)
		}
		if i := slices.IndexFunc(configured, func(c engine.TransportConfig) bool { return c.Name == t.Name }); i >= 0 {
			t = configured[i]
		}
		list = append(list, t)
	}
	return list, nil
}

var transportName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// open loads the configuration and opens an engine with it.
func (f *engineFlags) open(ctx context.Context, log io.Writer) (*engine.Engine, error) {
	cfg, err := f.load(ctx)
	if err != nil {
		return nil, err
	}
	return f.openWith(ctx, cfg, log)
}

// openWith opens an engine with a configuration.
func (f *engineFlags) openWith(ctx context.Context, cfg engine.Config, log io.Writer) (*engine.Engine, error) {
	opts := []engine.Option{engine.WithLogger(newLogger(log, *f.level))}
	if f.admin {
		r := prometheus.NewRegistry()
		r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
		opts = append(opts, engine.WithMetrics(r))
	} else {
		// The configuration may be that of a node, whose socket it is.
		cfg.Admin = engine.AdminConfig{}
	}
	e, err := engine.Open(ctx, cfg, opts...)
	if err != nil {
		return nil, fmt.Errorf("the engine could not start: %w", err)
	}
	return e, nil
}

// logFlag gives a command its --log-level.
func logFlag(cmd *cobra.Command) *slog.Level {
	level := slog.LevelWarn
	cmd.Flags().TextVar(&level, "log-level", slog.LevelWarn, "what to log to stderr: debug, info, warn or error")
	return &level
}

// shut closes an engine, waiting for what is pending for a while.
func shut(e *engine.Engine, drain time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), drain, fmt.Errorf("%v were over", drain))
	defer cancel()
	return e.Close(ctx)
}
