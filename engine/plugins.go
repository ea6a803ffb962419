package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// PluginState is how a plugin's binary compares with the plugin lock.
type PluginState string

const (
	// PluginApproved: the binary is the approved one.
	PluginApproved PluginState = "approved"
	// PluginUnlisted: no checksum was approved; the engine runs it as it is.
	PluginUnlisted PluginState = "not in the lock"
	// PluginChanged: another binary was approved; the engine will not run it.
	PluginChanged PluginState = "changed"
	// PluginMissing: there is no binary that could be run.
	PluginMissing PluginState = "missing"
)

// PluginInfo is what a configuration finds of one plugin.
type PluginInfo struct {
	// Name is the plugin's: its binary's name without "hawser-".
	Name string
	// Transports are the configured transports that run it.
	Transports []string
	// Path is its binary, empty if none was found.
	Path string
	// SHA256 is the binary's checksum, and Approved the one that it has to
	// have by the configuration or the lock file, empty if any will do.
	SHA256, Approved string
	// Pinned is the configuration's key that holds Approved, such as
	// transports[0].sha256; empty if the lock file does.
	Pinned string
	// Err says why there is no binary, naming every place looked at, or why
	// it cannot be read.
	Err error
}

// State compares the binary with the approved checksum.
func (p PluginInfo) State() PluginState {
	switch {
	case p.Err != nil:
		return PluginMissing
	case p.Approved == "":
		return PluginUnlisted
	case strings.EqualFold(p.Approved, p.SHA256):
		return PluginApproved
	default:
		return PluginChanged
	}
}

// Fault is why the engine would not run the plugin, nil if it would.
func (p PluginInfo) Fault() error {
	switch p.State() {
	case PluginMissing:
		return p.Err
	case PluginChanged:
		advice := "approve it with `hawser plugin verify --update`"
		if p.Pinned != "" {
			advice = "change " + p.Pinned
		}
		return sdk.Errorf(sdk.InvalidArgument, "plugin binary %s is not the one that was approved: its SHA-256 is %s, expected %s; "+
			"if the change is wanted, %s", p.Path, p.SHA256, strings.ToLower(p.Approved), advice)
	default:
		return nil
	}
}

// FindPlugins returns the plugins of the configured transports, in order of
// preference, then those that the lock file lists or that lie in the plugins'
// directories. A transport that nobody has listed and that is not installed is
// left out. It runs nothing.
func FindPlugins(cfg Config) ([]PluginInfo, error) {
	cfg, err := cfg.Effective()
	if err != nil {
		return nil, err
	}
	lock, err := loadLock(PluginLock(cfg.Plugins))
	if err != nil {
		return nil, err
	}
	f := &finder{dirs: PluginDirs(cfg.Plugins), lock: lock}
	var list []PluginInfo
	for i, t := range cfg.Transports {
		if t.InProcess != nil {
			continue
		}
		p := f.plugin(t)
		if t.leavesOut(p.Err) && p.Approved == "" {
			continue
		}
		if t.SHA256 != "" {
			p.Pinned = fmt.Sprintf("%s[%d].sha256", transportsKey, i)
		}
		i := slices.IndexFunc(list, func(q PluginInfo) bool {
			return q.Name == p.Name && q.Path == p.Path && q.Approved == p.Approved && (q.Pinned == "") == (p.Pinned == "")
		})
		if i < 0 {
			list = append(list, p)
		} else {
			list[i].Transports = append(list[i].Transports, t.Name)
			if p.Pinned != "" {
				list[i].Pinned += " and " + p.Pinned
			}
		}
	}
	for _, name := range f.others() {
		if !slices.ContainsFunc(list, func(p PluginInfo) bool { return p.Name == name }) {
			p := f.plugin(TransportConfig{Name: name, Plugin: pluginPrefix + name})
			p.Transports = nil
			list = append(list, p)
		}
	}
	return list, nil
}

// loadLock says what to do with a file that is no lock.
func loadLock(file string) (*pluginhost.Lock, error) {
	lock, err := pluginhost.LoadLock(file)
	if err != nil {
		return nil, fmt.Errorf("%w; fix the file or delete it, and approve the binaries with `hawser plugin verify --update`", err)
	}
	return lock, nil
}

// plugin looks for a transport's plugin.
func (f *finder) plugin(t TransportConfig) PluginInfo {
	p := PluginInfo{Name: strings.TrimPrefix(filepath.Base(t.Plugin), pluginPrefix), Transports: []string{t.Name}}
	spec, err := f.spec(t)
	if err != nil {
		p.Err, p.Approved = err, f.lock.Sum(p.Name)
		return p
	}
	p.Path, p.Approved = spec.Path, spec.SHA256
	if p.SHA256, err = pluginhost.Checksum(spec.Path); err != nil {
		p.Err = err
	}
	return p
}

// others lists the plugins in the lock file and in the directories, by name.
func (f *finder) others() []string {
	names := f.lock.Names()
	for _, dir := range f.dirs {
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // a directory that is not there is no fault while others are
		}
		for _, e := range entries {
			name, ok := strings.CutPrefix(e.Name(), pluginPrefix)
			if !ok || e.IsDir() {
				continue
			}
			if _, err := pluginhost.Find(name, []string{dir}); err == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// UpdatePluginLock approves the binaries of these plugins, or of all that
// FindPlugins finds, as they are now. It returns the lock file that it wrote
// and the plugins whose entry changed. A plugin without a binary is an error,
// and then nothing is written; without names its entry is dropped.
func UpdatePluginLock(cfg Config, names ...string) (file string, changed, dropped []string, err error) {
	found, err := FindPlugins(cfg)
	if err != nil {
		return "", nil, nil, err
	}
	file = PluginLock(cfg.Plugins)
	lock, err := loadLock(file)
	if err != nil {
		return file, nil, nil, err
	}
	chosen, err := choosePlugins(found, names)
	if err != nil {
		return file, nil, nil, err
	}
	for _, p := range chosen {
		if p.Err != nil && len(names) == 0 {
			if p.Path == "" && lock.Sum(p.Name) != "" && !slices.Contains(dropped, p.Name) {
				dropped = append(dropped, p.Name)
			}
			continue
		}
		if p.Err != nil {
			return file, nil, nil, p.Err
		}
		updated, err := lock.Update(p.Name, p.Path)
		if err != nil {
			return file, nil, nil, err
		}
		if updated {
			changed = append(changed, p.Name)
		}
	}
	if len(changed)+len(dropped) == 0 {
		return file, nil, nil, nil
	}
	if lock, err = withoutPlugins(lock, file, dropped); err != nil {
		return file, nil, nil, err
	}
	return file, changed, dropped, lock.Save(file)
}

// withoutPlugins returns a lock without some entries.
func withoutPlugins(lock *pluginhost.Lock, file string, names []string) (*pluginhost.Lock, error) {
	var kept []byte
	for line := range strings.Lines(string(lock.Bytes())) {
		if _, name, ok := strings.Cut(strings.TrimSpace(line), "  "); !ok || strings.HasPrefix(line, "#") || !slices.Contains(names, name) {
			kept = append(kept, line...)
		}
	}
	return pluginhost.ParseLock(file, kept)
}

// choosePlugins picks plugins by their own or their transports' names.
func choosePlugins(found []PluginInfo, names []string) ([]PluginInfo, error) {
	if len(names) == 0 {
		return found, nil
	}
	var chosen []PluginInfo
	for _, name := range names {
		i := slices.IndexFunc(found, func(p PluginInfo) bool { return p.called(name) })
		if i < 0 {
			return nil, sdk.Errorf(sdk.InvalidArgument, "no plugin %q is configured, found or in the lock", name)
		}
		chosen = append(chosen, found[i])
	}
	return chosen, nil
}

func (p PluginInfo) called(name string) bool {
	return p.Name == strings.TrimPrefix(name, pluginPrefix) || slices.Contains(p.Transports, name)
}

// PluginContract is the version of the contract that plugins must have been
// built with.
const PluginContract = sdk.ContractVersion

// PluginDescription is what a plugin says about itself.
type PluginDescription = sdk.Description

// DescribePlugin runs a plugin's binary with --describe. The plugin is named
// as in FindPlugins, or by a path, which has a separator in it. One that is
// named and is not the approved binary is not run.
func DescribePlugin(ctx context.Context, cfg Config, nameOrPath string) (path string, d PluginDescription, err error) {
	if strings.ContainsRune(nameOrPath, filepath.Separator) {
		d, err = pluginhost.Describe(ctx, nameOrPath)
		return nameOrPath, d, err
	}
	found, err := FindPlugins(cfg)
	if err != nil {
		return "", d, err
	}
	i := slices.IndexFunc(found, func(p PluginInfo) bool { return p.called(nameOrPath) })
	if i < 0 {
		name := strings.TrimPrefix(nameOrPath, pluginPrefix)
		if _, err = pluginhost.Find(name, PluginDirs(cfg.Plugins)); err == nil {
			err = sdk.Errorf(sdk.Unavailable, "plugin %s appeared just now: try again", name)
		}
		return "", d, err
	}
	d, err = describePlugin(ctx, found[i])
	return found[i].Path, d, err
}

func describePlugin(ctx context.Context, p PluginInfo) (PluginDescription, error) {
	if err := p.Fault(); err != nil {
		return PluginDescription{}, err
	}
	return pluginhost.Describe(ctx, p.Path)
}
