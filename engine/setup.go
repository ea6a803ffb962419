package engine

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/engine/registry"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// PluginPathVariable names the environment variable that lists directories of
// plugin binaries, separated like PATH.
const PluginPathVariable = "HAWSER_PLUGIN_PATH"

func newRegistry(c RegistryConfig) (registry.Registry, error) {
	if c.Type == "static" {
		return registry.NewStatic(c.Static)
	}
	return registry.NewP2P(), nil
}

func newControlCarrier(c Config, keys *mtls.Keyring, log *slog.Logger) control.Carrier {
	return control.NewGRPC(control.Options{Listen: c.Control.Listen, Keys: keys, Insecure: c.Security.Insecure, Log: log, Timeouts: control.Timeouts{
		Request: c.RPC.RequestTimeout(), Bootstrap: c.RPC.BootstrapTimeout(),
		Probe: c.RPC.ProbeTimeout(), Connect: c.RPC.ConnectTimeout(),
	}})
}

// finder finds plugins' binaries and their checksums.
type finder struct {
	dirs []string
	lock *pluginhost.Lock
}

// PluginDirs returns the directories in which the configuration looks for
// plugin binaries, in order: plugins.dir, those of HAWSER_PLUGIN_PATH, that of
// the running program.
func PluginDirs(c PluginsConfig) []string {
	var dirs []string
	if c.Dir != "" {
		dirs = append(dirs, c.Dir)
	}
	for _, d := range filepath.SplitList(os.Getenv(PluginPathVariable)) {
		if d != "" {
			dirs = append(dirs, d)
		}
	}
	if exe, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(exe))
	}
	return dirs
}

// PluginLock returns the lock file that the configuration names, or the first
// plugins.lock in the plugins' directories, or the place where one would be
// written.
func PluginLock(c PluginsConfig) string {
	if c.Lock != "" {
		return c.Lock
	}
	dirs := PluginDirs(c)
	for _, d := range dirs {
		file := filepath.Join(d, lockName)
		if _, err := os.Stat(file); err == nil {
			return file
		}
	}
	if len(dirs) == 0 {
		return lockName
	}
	return filepath.Join(dirs[0], lockName)
}

const lockName = "plugins.lock"

func newFinder(c PluginsConfig) (*finder, error) {
	file := PluginLock(c)
	if c.Lock != "" {
		if _, err := os.Stat(file); err != nil {
			return nil, sdk.Errorf(sdk.InvalidArgument, "plugins.lock: %w: write it with `hawser plugin verify --update`", err)
		}
	}
	lock, err := pluginhost.LoadLock(file)
	if err != nil {
		return nil, err
	}
	return &finder{dirs: PluginDirs(c), lock: lock}, nil
}

// leavesOut says whether the error of its spec is no more than that nobody has
// listed the transport and that it is not installed.
func (c TransportConfig) leavesOut(err error) bool {
	return c.optional && errors.Is(err, pluginhost.ErrNotFound)
}

// spec turns a configured transport into what the plugin host runs.
func (f *finder) spec(c TransportConfig) (pluginhost.Spec, error) {
	s := pluginhost.Spec{Name: c.Name, SHA256: c.SHA256, Settings: c.Config, Env: c.Env, InProcess: c.InProcess, Keys: c.Keys != nil && *c.Keys}
	if c.InProcess != nil {
		return s, nil
	}
	if strings.ContainsRune(c.Plugin, filepath.Separator) {
		s.Path = c.Plugin
	} else {
		path, err := pluginhost.Find(strings.TrimPrefix(c.Plugin, pluginPrefix), f.dirs)
		if err != nil {
			return s, sdk.Errorf(sdk.InvalidArgument, "transport %s: %w", c.Name, err)
		}
		s.Path = path
	}
	if s.SHA256 == "" {
		s.SHA256 = f.lock.Sum(strings.TrimPrefix(filepath.Base(s.Path), pluginPrefix))
	}
	return s, nil
}
