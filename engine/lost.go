package engine

import (
	"errors"
	"slices"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/health"
	"github.com/hawser-transport/hawser/sdk"
)

// errLostThere is why an endpoint ends whose other end is gone.
var errLostThere = sdk.Errorf(sdk.Unavailable, "the peer's end of it is gone")

// mournLocked has the peer told of an endpoint that ended here by itself. Its
// transport may not notice: a device that sends to a queue pair which has failed
// meets silence, and what it was given would wait for as long as that lasts.
func (a *association) mournLocked(ep *endpoint) {
	if health.EndKind(ep.cause) != health.EndpointEnded || errors.Is(ep.cause, errLostThere) {
		return // a plugin's end is told by its successor
	}
	ep.p.lost = ep.generation
	a.e.transports.renew()
	a.tellLocked()
}

// addLostLocked adds the endpoints that are gone to what is published.
func (a *association) addLostLocked(list []control.Transport) {
	for _, p := range a.pathsLocked() {
		i := slices.IndexFunc(list, func(t control.Transport) bool { return p.lost > 0 && t.Name == p.transport && t.Instance == p.inst.ID })
		if i >= 0 && len(list[i].Lost) < maxDown {
			list[i].Lost = append(list[i].Lost, control.Lost{Path: p.name, Generation: p.lost})
		}
	}
}

// loseLocked ends the endpoints whose other end is gone: what was given to them
// may have arrived.
func (a *association) loseLocked() {
	for _, t := range a.remote.list {
		for _, l := range t.Lost {
			if p := a.paths[pathKey{t.Name, l.Path}]; p != nil {
				for _, ep := range p.endpointsLocked() {
					if ep.remote == t.Instance && ep.generation <= l.Generation {
						ep.endLocked(errLostThere)
						a.e.tasks.Go(ep.se.Close)
					}
				}
			}
		}
	}
}
