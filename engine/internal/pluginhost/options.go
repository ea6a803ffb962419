package pluginhost

import (
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// Options holds what all of an engine's supervisors have in common. A zero
// field means its documented default.
type Options struct {
	// Incarnation is the engine's own; instances are told.
	Incarnation sdk.Incarnation
	// NextInstance returns ids for instances, each once and growing. The
	// default counts from 1 and suits one supervisor only: an engine shares
	// one counter among its supervisors.
	NextInstance func() uint64
	// Log is where supervision and the plugins' own lines go. Default: none.
	Log *slog.Logger
	// Freeze tells in which intervals this process did not run. Default: a
	// detector that the supervisor runs itself.
	Freeze *freeze.Detector

	// StartTimeout bounds each of a start's two parts: until the plugin can
	// be called, and its Configure. Default 10 s.
	StartTimeout time.Duration
	// StopTimeout is how long an orderly stop may take before the process
	// group is killed. Default 3 s.
	StopTimeout time.Duration
	// AbandonAfter is how long after SIGKILL a process may take to be gone
	// before it is abandoned. Default 10 s.
	AbandonAfter time.Duration
	// DrainTimeout bounds the drain of an instance that is replaced.
	// Default 30 s.
	DrainTimeout time.Duration
	// HealthInterval is the time between health calls. Default 1 s.
	HealthInterval time.Duration
	// HealthTimeout is a health call's deadline. Default 2 s.
	HealthTimeout time.Duration
	// CrashBudget crashes within CrashWindow are too many. Default 5 in 60 s.
	CrashBudget int
	CrashWindow time.Duration
	// Random is where the jitter of restarts comes from. Default: a source that
	// differs with every process.
	Random func() uint64
	// BackoffMin and BackoffMax bound the wait before a restart. Default
	// 100 ms and 30 s.
	BackoffMin, BackoffMax time.Duration
	// QuarantineRetry is the time between attempts to start a quarantined
	// plugin. Default 5 min.
	QuarantineRetry time.Duration

	// RunDir is where private run directories are made: short, on a local
	// file system. Default: XDG_RUNTIME_DIR, else the system's directory for
	// temporary files, else /tmp, whichever is short enough first.
	RunDir string
	// Keys returns the keys of the moment, for transports that ask for them and
	// may have them; those may listen at any address. Nil means none.
	Keys func() *sdk.Keys
	// CheckListen decides whether a transport without keys may listen at an
	// address. It is asked before an address is bound and, with what was bound, after.
	// Default: loopback addresses only.
	CheckListen func(address string) error
}

// withDefaults returns a copy of o with zero fields filled in.
func (o Options) withDefaults() Options {
	if o.NextInstance == nil {
		var n atomic.Uint64
		o.NextInstance = func() uint64 { return n.Add(1) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Random == nil {
		o.Random = rand.Uint64
	}
	if o.CheckListen == nil {
		o.CheckListen = LoopbackOnly
	}
	if o.CrashBudget <= 0 {
		o.CrashBudget = 5
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.StartTimeout, 10 * time.Second},
		{&o.StopTimeout, 3 * time.Second},
		{&o.AbandonAfter, 10 * time.Second},
		{&o.DrainTimeout, 30 * time.Second},
		{&o.HealthInterval, time.Second},
		{&o.HealthTimeout, 2 * time.Second},
		{&o.CrashWindow, time.Minute},
		{&o.BackoffMin, 100 * time.Millisecond},
		{&o.BackoffMax, 30 * time.Second},
		{&o.QuarantineRetry, 5 * time.Minute},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	o.BackoffMax = max(o.BackoffMax, o.BackoffMin)
	return o
}
