// Package seam is where an engine meets what tests replace: the control
// plane's carrier, its identity, chance, the deadline that everything slow is
// measured by, and whether the process runs. Hosts cannot reach it; engine/enginetest makes options of it.
package seam

import (
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/sdk"
)

// Options are what the options of engine.Open set.
type Options struct {
	// Log is where the engine and its plugins log. Nil means nowhere.
	Log *slog.Logger
	// Carrier replaces the control plane's carrier, unless it is nil.
	Carrier control.Carrier
	// Incarnation replaces the random one, unless it is zero.
	Incarnation sdk.Incarnation
	// Longest replaces the longest deadline of a notification, and with it
	// the silence after which sessions end, unless it is 0.
	Longest time.Duration
	// Hold, unless it is nil, is called wherever the engine goes on after it
	// waited; a test that has it block stops the engine as SIGSTOP would.
	Hold func()
	// Random replaces the source of sessions and jitter, unless it is nil. It
	// is called by many goroutines.
	Random func() uint64
	// Metrics is where metrics are registered, unless it is nil, and
	// PeerMetrics how many peers may have some of their own.
	Metrics     prometheus.Registerer
	PeerMetrics int
	// Queues are the engine's own type, which this package cannot name.
	Queues []any
}
