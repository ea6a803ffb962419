package engine

import (
	"slices"

	"github.com/hawser-transport/hawser/sdk"
)

// What an op waits for that no way takes now.

// cutOffLocked reports whether a transport could carry an op if it had a path: they
// come back, and until then the op waits as for one that cannot be connected.
func (m *mover) cutOffLocked(o *op) bool {
	return slices.ContainsFunc(m.cut, func(r route) bool { return r.reaches(o) })
}

func (r route) reaches(o *op) bool {
	return reaches(r.local.inst.Description.Move.WithDefaults(), o)
}

// overLocked has an op fail whose time is over, with what is wrong with the ways
// that it has waited for.
func (m *mover) overLocked(o *op) {
	for _, l := range m.order {
		if len(o.spans) > 0 && l.reaches(o) && l.ch == nil && l.trouble != "" {
			o.tried(l, l.trouble)
		}
	}
	for _, r := range m.cut {
		if r.reaches(o) {
			o.note(Attempt{Transport: r.local.name, Reason: "none of its paths is up"})
		}
	}
	m.failLocked(o, sdk.Errorf(sdk.DeadlineExceeded, "not done within its deadline"))
}
