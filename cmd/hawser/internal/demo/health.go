package demo

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-transport/hawser/engine"
)

// healthReport is what an engine has found wrong since it was opened.
type healthReport struct {
	// Silent and Resumed count peers that were marked, and marks that ended;
	// Pauses counts pauses of paths.
	Silent, Resumed, Pauses int
	// Paused are the paths that are paused now.
	Paused []string
	// Down are transports that went down, and why.
	Down []string
}

// health keeps account of an engine's events.
type health struct {
	mu     sync.Mutex
	so     healthReport
	paused map[string]struct{}
}

func newHealth() *health { return &health{paused: map[string]struct{}{}} }

func (h *health) take(ev engine.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	way := fmt.Sprintf("%s/%s to %s", ev.Transport, ev.Path, ev.Address)
	switch ev.Kind {
	case engine.PeerSilent:
		h.so.Silent++
	case engine.PeerResumed:
		h.so.Resumed++
	case engine.PathPaused:
		h.so.Pauses++
		h.paused[way] = struct{}{}
	case engine.PathResumed:
		delete(h.paused, way)
	case engine.TransportDown, engine.TransportQuarantined:
		h.so.Down = append(h.so.Down, fmt.Sprintf("%s: %v: %v", ev.Transport, ev.Kind, ev.Err))
	}
}

func (h *health) report(context.Context, struct{}) (any, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.so
	r.Paused = slices.Sorted(maps.Keys(h.paused))
	return r, nil
}
