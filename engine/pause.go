package engine

import "github.com/hawser-transport/hawser/engine/internal/health"

// pathChanged tells a peer's association that a path was paused or resumed.
func (e *Engine) pathChanged(health.PathEvent) {}
