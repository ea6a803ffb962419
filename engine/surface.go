package engine

import (
	"sync/atomic"

	"github.com/hawser-transport/hawser/engine/internal/seam"
)

// surface is what can be seen of an engine from outside: metrics and the admin
// interfaces.
type surface struct {
	metrics *metrics
	admin   *adminServers
	started atomic.Bool // Open has done all
}

// open registers the metrics and binds the admin interfaces' addresses: a
// fault in them shows before anything runs.
func (s *surface) open(e *Engine, o seam.Options) (err error) {
	if s.metrics, err = registerMetrics(e, o); err != nil {
		return err
	}
	if s.admin, err = listenAdmin(e.cfg.Admin); err != nil {
		s.metrics.unregister()
		return err
	}
	return nil
}

// serve begins to answer.
func (s *surface) serve(e *Engine) { s.admin.serve(e) }

// close ends all. It is idempotent.
func (s *surface) close() {
	s.metrics.unregister()
	s.admin.close()
}
