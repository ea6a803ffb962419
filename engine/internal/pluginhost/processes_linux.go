package pluginhost

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"syscall"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
)

// processes launches plugins as processes. It belongs to one supervisor.
type processes struct {
	opts  Options
	froze *freeze.Detector

	mu  sync.Mutex
	dir *runDir
	img *image // of the last launch: a restart needs no new copy
}

func newProcesses(opts Options, froze *freeze.Detector) launcher {
	return &processes{opts: opts, froze: froze}
}

func (l *processes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.dir != nil {
		l.dir.close()
		l.dir = nil
	}
	l.dropImage()
}

func (l *processes) dropImage() {
	if l.img != nil {
		l.img.close()
		l.img = nil
	}
}

// launch is called by one goroutine at a time.
func (l *processes) launch(ctx context.Context, spec Spec, _ uint64, log *slog.Logger) (process, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	env, err := userEnvironment(spec.Env)
	if err != nil {
		return nil, err
	}
	if l.dir == nil {
		if l.dir, err = makeRunDir(l.opts.RunDir, log); err != nil {
			return nil, err
		}
	}
	if err := l.prepare(spec, log); err != nil {
		return nil, err
	}
	p, err := start(ctx, l.opts, l.froze, log, l.img, l.dir.path, spec, env)
	if err == nil || !l.img.sealed || !errors.Is(err, syscall.EACCES) && !errors.Is(err, syscall.EPERM) {
		return orNil(p), err
	}
	// A security module may let a memory file be made and not executed.
	if err := l.unseal(spec, log, err); err != nil {
		return nil, err
	}
	p, err = start(ctx, l.opts, l.froze, log, l.img, l.dir.path, spec, env)
	return orNil(p), err
}

// orNil keeps a nil pointer from becoming an interface that is not nil.
func orNil(p *plugged) process {
	if p == nil {
		return nil
	}
	return p
}

// prepare makes sure that there is an image of what spec names now.
func (l *processes) prepare(spec Spec, log *slog.Logger) error {
	if l.img != nil && l.img.sealed && l.img.current(spec.Path, spec.SHA256) {
		return nil
	}
	img, err := openImage(spec.Path, spec.SHA256, log)
	if err != nil {
		return err
	}
	l.dropImage()
	l.img = img
	return nil
}

// unseal replaces the image by the file itself.
func (l *processes) unseal(spec Spec, log *slog.Logger, why error) error {
	f, err := openProgram(spec.Path)
	if err != nil {
		return err
	}
	log.Warn("the kernel would not execute a memory file: the plugin is executed from its file, which may change after it was checked",
		"path", spec.Path, "err", why)
	id, err := identify(f, spec.Path, spec.SHA256)
	if err != nil {
		_ = f.Close()
		return err
	}
	owner := f
	img, err := plainImage(f, &owner, id)
	if err != nil {
		_ = f.Close()
		return err
	}
	l.dropImage()
	l.img = img
	return nil
}

var _ launcher = (*processes)(nil)
var _ process = (*plugged)(nil)
