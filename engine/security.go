package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

const (
	// watchEvery is how often the files of keys are looked at.
	watchEvery = time.Second
	// maxKeyFile bounds one of them.
	maxKeyFile = 128 << 10
	// expiryWarning is how long before a certificate expires the log says so.
	expiryWarning = 24 * time.Hour
)

// security is the engine's mutual TLS: the keys in use, and the files that they
// came from.
type security struct {
	e    *Engine
	ring *mtls.Keyring // nil without TLS
	keys atomic.Pointer[sdk.Keys]

	mu      sync.Mutex
	stamp   [3]fileStamp // of what was read last
	changes int
	warned  time.Time // the expiry that was warned of
	failed  string    // what was said last of files that are no good
}

// fileStamp tells a file from what was there before.
type fileStamp struct {
	info os.FileInfo
	size int64
	at   time.Time
}

func (s fileStamp) same(o fileStamp) bool {
	return s.info != nil && o.info != nil && os.SameFile(s.info, o.info) && s.size == o.size && s.at.Equal(o.at)
}

// files are the three of them with the keys that name them.
func (c SecurityConfig) files() [3]struct{ part, path string } {
	return [3]struct{ part, path string }{{"ca", c.CA}, {"cert", c.Cert}, {"key", c.Key}}
}

func (c SecurityConfig) stamps() (list [3]fileStamp) {
	for i, f := range c.files() {
		if info, err := os.Stat(f.path); err == nil {
			list[i] = fileStamp{info, info.Size(), info.ModTime()}
		}
	}
	return list
}

// load reads the files and checks them. Its error names the key, the file and
// what is wrong.
func (c SecurityConfig) load() (*sdk.Keys, *mtls.Keyring, *ConfigError) {
	k := &sdk.Keys{Allow: c.Allow}
	for i, f := range c.files() {
		b, err := readKeyFile(f.path, f.part == "key")
		if err != nil {
			return nil, nil, keyFileFault(f.part, err.Error())
		}
		*[...]*[]byte{&k.CA, &k.Cert, &k.Key}[i] = b
	}
	ring, err := mtls.New(*k)
	if err == nil {
		return k, ring, nil
	}
	var f *mtls.Fault
	if !errors.As(err, &f) {
		return nil, nil, keyFileFault("ca", err.Error())
	}
	for _, file := range c.files() {
		if file.part == f.Part {
			return nil, nil, keyFileFault(f.Part, file.path+": "+f.Err.Error())
		}
	}
	return nil, nil, keyFileFault(f.Part, f.Err.Error())
}

func keyFileFault(part, text string) *ConfigError {
	return &ConfigError{Key: "security." + part, Message: text, Code: sdk.InvalidArgument}
}

// readKeyFile reads a file of keys. A secret one must not be open to others.
func readKeyFile(path string, secret bool) ([]byte, error) {
	// Opening a pipe must not wait for its other end.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err // names the file
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); !mode.IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	} else if secret && runtime.GOOS != "windows" && mode.Perm()&0o027 != 0 {
		return nil, fmt.Errorf("%s: its permissions are %04o, too open for a key: chmod 600 it (0640 is the most that is accepted)", path, mode.Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", path, err)
	case len(b) > maxKeyFile:
		return nil, fmt.Errorf("%s: has more than %d bytes", path, maxKeyFile)
	}
	return b, nil
}

// CheckFiles reads the files that the configuration names under security, and
// says what is wrong with them, as [ConfigErrors]. [Open] does so too.
func (c Config) CheckFiles() error {
	if !c.Security.secured() {
		return nil
	}
	if _, _, wrong := c.Security.load(); wrong != nil {
		return ConfigErrors{wrong}
	}
	return nil
}

// CheckFiles is [Config.CheckFiles] with the place where the file is named.
func (l LoadedConfig) CheckFiles() error {
	if !l.Config.Security.secured() {
		return nil
	}
	_, _, wrong := l.Config.Security.load()
	if wrong == nil {
		return nil
	}
	if o, ok := l.origins[wrong.Key]; ok {
		wrong.Source, wrong.Line, wrong.Column = o.source, o.line, o.column
	}
	return ConfigErrors{wrong}
}

// open reads the keys, if there are any.
func (s *security) open(e *Engine) error {
	s.e = e
	c := e.cfg.Security
	if c.Insecure {
		e.log.Warn("INSECURE: security.insecure permits addresses that other machines can reach, without TLS: " +
			"whoever reaches them can read, forge and disturb everything")
	}
	if !c.secured() {
		return nil
	}
	s.stamp = c.stamps()
	keys, ring, wrong := c.load()
	if wrong != nil {
		return ConfigErrors{wrong}
	}
	s.keys.Store(keys)
	s.ring = ring
	e.log.Info("mutual TLS is on", "certificate", ring.Names(), "expires", ring.NotAfter(), "allow", c.Allow)
	s.warnExpiry(time.Now())
	return nil
}

// identity is this engine's own; empty without TLS.
func (s *security) identity() string {
	if s.ring == nil {
		return ""
	}
	return s.ring.Identity()
}

// notTheirs is the error of what somebody says in the name of an incarnation
// that is the bearer's of another certificate. Under no certificate at all, and
// under a shared one, nobody is told from anybody.
func notTheirs(what string, i Incarnation, owner, by string) error {
	return sdk.Errorf(sdk.Refused, "%s: incarnation %s is known under the certificate of %s, this is that of %s: "+
		"a certificate with other names is another node's, so restart an engine that was given one", what, i.Short(), owner, by)
}

// impostor counts and logs such an error.
func (e *Engine) impostor(err error) error {
	n := e.stats.Impostors.Add(1)
	if n&(n-1) == 0 { // one line for each power of two: a peer must not fill the log
		e.log.Warn("refused what was said in another engine's name", "error", err, "so far", n)
	}
	return err
}

// keysForPlugins returns what the plugin host asks for keys, or nil.
func (s *security) keysForPlugins() func() *sdk.Keys {
	if s.ring == nil {
		return nil
	}
	return s.keys.Load
}

// checkListen is for transports without keys.
func (c SecurityConfig) checkListen() func(string) error {
	if c.Insecure {
		return func(string) error { return nil }
	}
	return pluginhost.LoopbackOnly
}

// watch looks at the files until the engine ends.
func (s *security) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.e.ctx.Done():
			return
		case now := <-tick.C:
			_ = s.refresh(s.e.ctx) // it is logged
			s.warnExpiry(now)
		}
	}
}

// refresh reads the files again if they have changed, and hands new keys to
// whoever uses them. Files that are no good, perhaps since they are just being
// replaced one by one, change nothing and are looked at again.
func (s *security) refresh(ctx context.Context) error {
	if s.ring == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.e.cfg.Security
	now := c.stamps() // before they are read: a change meanwhile is seen next time
	same := true
	for i := range now {
		same = same && now[i].same(s.stamp[i])
	}
	if same {
		return nil
	}
	keys, _, wrong := c.load()
	if wrong != nil {
		if text := wrong.Error(); text != s.failed {
			s.failed = text
			s.e.log.Error("changed keys are no good: the old ones stay in use", "error", text)
		}
		return ConfigErrors{wrong}
	}
	s.stamp, s.failed = now, ""
	if keys.Equal(*s.keys.Load()) {
		return nil
	}
	if err := s.ring.Set(*keys); err != nil {
		return err
	}
	s.keys.Store(keys)
	s.changes++
	s.e.log.Info("keys changed", "certificate", s.ring.Names(), "expires", s.ring.NotAfter())
	var errs []error
	for _, l := range s.e.transports.up() {
		errs = append(errs, s.hand(ctx, l.inst, keys))
	}
	return errors.Join(errs...)
}

// hand gives an instance the keys of the moment, if it has any.
func (s *security) hand(ctx context.Context, inst *pluginhost.Instance, keys *sdk.Keys) error {
	t, ok := inst.Transport.(sdk.Keyed)
	if !ok || !inst.Keyed {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.e.cfg.Plugins.StartTimeout())
	defer cancel()
	err := t.SetKeys(ctx, *keys)
	if err != nil {
		s.e.log.Error("transport did not take the changed keys: it goes on with the old ones", "transport", inst.Name, "error", err)
		return sdk.Errorf(sdk.CodeOf(err), "transport %s: changed keys: %w", inst.Name, err)
	}
	return nil
}

// cameUp hands over the keys once more if they have changed since the engine
// opened: perhaps between the instance's start and now. Of a transport that opens
// no socket of ours, and would be heard of nowhere else, it says what it lacks.
func (s *security) cameUp(inst *pluginhost.Instance) {
	if d := inst.Description; s.ring != nil && !d.Has(sdk.FeatureKeys) && len(d.Listeners) == 0 {
		s.e.log.Warn("there is TLS, and this transport does not use it: what it carries is not secured", "transport", inst.Name)
	}
	if s.ring == nil || !inst.Keyed {
		return
	}
	s.e.tasks.Go(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.changes > 0 {
			_ = s.hand(s.e.ctx, inst, s.keys.Load()) // it is logged
		}
	})
}

func (s *security) warnExpiry(now time.Time) {
	at := s.ring.NotAfter()
	if at.Sub(now) > expiryWarning || at.Equal(s.warned) {
		return
	}
	s.warned = at
	s.e.log.Warn("the certificate expires soon: peers will refuse new connections", "file", s.e.cfg.Security.Cert, "expires", at)
}
