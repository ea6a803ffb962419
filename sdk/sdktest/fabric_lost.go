package sdktest

import (
	"github.com/hawser-transport/hawser/sdk"
)

// lost names a path that a node does not list.
type lost struct{ node, path string }

// Lose takes a path from a node, as a port that loses its link does: the node's
// transports do not list it any more and say so, and its endpoints end, at both
// ends, with Unavailable.
func (f *Fabric) Lose(node, path string) { f.setLost(node, path, true) }

// Regain undoes Lose.
func (f *Fabric) Regain(node, path string) { f.setLost(node, path, false) }

func (f *Fabric) setLost(node, path string, is bool) {
	f.mu.Lock()
	var tell []func()
	for _, m := range f.membersLocked() {
		if m.node == node && m.cfg.PathsChanged != nil {
			tell = append(tell, m.cfg.PathsChanged)
		}
	}
	if is {
		f.lost[lost{node, path}] = true
		f.endLocked(node, "", path)
	} else {
		delete(f.lost, lost{node, path})
	}
	f.mu.Unlock()
	for _, changed := range tell {
		changed()
	}
}

// listedLocked says why a path cannot be used, if it is lost.
func (m *member) listedLocked(path string) error {
	if m.f.lost[lost{m.node, path}] {
		return sdk.Errorf(sdk.Unavailable, "%s has lost path %s", m.node, path)
	}
	return nil
}
