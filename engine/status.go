package engine

import (
	"context"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// TransportStatus is how one configured transport fares.
type TransportStatus struct {
	// Name is the configured name, and State one of starting, up, restarting,
	// quarantined, unsupported (this machine lacks what it needs, as LastError
	// says), stopped and absent (no binary was found), since Since.
	Name, State string
	Since       time.Time
	// Instance, PID, Version and Carrier are those of the instance that is
	// up; PID is 0 in process. Carrier is the link's: unix or grpc.
	Instance uint64
	PID      int
	Version  string
	Carrier  string
	// Wire is the name that the plugin gives itself, and by which peers know
	// the transport; empty before it was up.
	Wire string
	// Restarts counts starts after the first, Downs instances that went down
	// for whatever reason, Quarantines how often the plugin was given up.
	Restarts, Downs, Quarantines uint64
	// LastError is why the last instance ended or did not start, and Stderr
	// the last lines that it wrote.
	LastError error
	Stderr    []string
	// Abandoned counts instances that were killed and are not gone.
	Abandoned int
	// Dropped counts what the transport's plugin sent of endpoints and frames
	// that it does not have: they ended meanwhile, or it talks nonsense.
	Dropped uint64
	// Listeners tells where the transport listens.
	Listeners map[string]string
}

// Transports tells how each configured transport fares, in order of
// preference, absent ones last.
func (e *Engine) Transports() []TransportStatus {
	e.transports.mu.Lock()
	defer e.transports.mu.Unlock()
	var list []TransportStatus
	for _, t := range e.transports.set {
		s := t.sup.Status()
		list = append(list, TransportStatus{
			Name: s.Name, State: string(s.State), Since: s.Since, Instance: s.Instance, PID: s.PID,
			Version: s.Version, Carrier: s.Carrier, Restarts: s.Restarts, LastError: s.LastError,
			Stderr: s.Stderr, Abandoned: s.Abandoned, Listeners: s.Listeners,
			Dropped: s.Dropped, Wire: t.wire, Downs: t.downs.Load(), Quarantines: t.quarantines.Load(),
		})
	}
	for _, a := range e.transports.absent {
		list = append(list, TransportStatus{Name: a.name, State: "absent", Since: e.started, LastError: a.err})
	}
	return list
}

// restarts is how often plugins were started again.
func (ts *transports) restarts() (n uint64) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.set {
		n += t.sup.Status().Restarts
	}
	return n
}

// RestartTransport replaces a transport's instance by a new one, as Reload
// does, or, if none runs, starts one at once; it lifts a quarantine.
func (e *Engine) RestartTransport(ctx context.Context, name string) error {
	e.transports.mu.Lock()
	var found *transport
	for _, t := range e.transports.set {
		if t.cfg.Name == name {
			found = t
		}
	}
	e.transports.mu.Unlock()
	if found == nil {
		return sdk.Errorf(sdk.InvalidArgument, "restart: no transport %q is configured", name)
	}
	return found.sup.Restart(ctx)
}
