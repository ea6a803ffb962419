//go:build linux

package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-transport/hawser/engine"
)

// fabric is simulated hosts with two rails each.
type fabric struct{ dir string }

func newFabric(t *testing.T) fabric {
	t.Helper()
	dir, err := os.MkdirTemp("", "hwr") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := fabric{dir}
	for i, host := range []string{"sender", "receiver"} {
		f.do(t, "host", host, fmt.Sprintf("10.77.0.%d", i+1), fmt.Sprintf("10.77.1.%d", i+1))
	}
	return f
}

func (f fabric) do(t *testing.T, args ...string) {
	t.Helper()
	c := exec.Command(filepath.Join(bin, "hawser-rdma-faulty"), append([]string{"sim", f.dir}, args...)...)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
}

// config is an engine's on the host of its name, with rdma alone, as a process.
// An acknowledgement may take 0.54 s, on a machine that is busy.
func (f fabric) config(host string) engine.Config {
	cfg := config(host)
	no := false
	cfg.Notification.RPCFallback = &no
	cfg.Transports = []engine.TransportConfig{{
		Name: "rdma", Env: map[string]string{"HAWSER_RDMA_SIM": filepath.Join(f.dir, host+".json")},
		Config: json.RawMessage(`{"endpoint": {"send_timeout": 17}}`),
	}}
	return cfg
}

// rail is a path's state, or empty if the engine does not know the path.
func (n *node) rail(path string) string {
	for _, p := range n.Peers() {
		for _, w := range p.Paths {
			if w.Path == path {
				return w.State
			}
		}
	}
	return ""
}

const rail0, rail1 = "10.77.0.1-10.77.0.2", "10.77.1.1-10.77.1.2"

// over sends until a path is taken.
func (n *node) over(t *testing.T, to *node, path string, sent map[string]int) {
	t.Helper()
	until(t, path+" to carry", func() bool {
		prefix := fmt.Sprintf("n%d", len(sent))
		sent[prefix] = 1
		return n.send(t, to.address(), prefix, 1)[0].Path == path
	})
}

// A port of either side goes down and comes up: its plugin says so, both
// engines know, and no path is blamed for it. It may have been down before the
// two met.
func TestAPortGoesDownAndUp(t *testing.T) {
	for _, loser := range []string{"sender", "receiver"} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, before they meet: %v", loser, before), func(t *testing.T) {
				t.Parallel()
				f := newFabric(t)
				sender, receiver := open(t, f.config("sender")), open(t, f.config("receiver"))
				both := map[string]*node{"sender": sender, "receiver": receiver}
				events := sender.Events(t.Context())
				defer events.Close()
				sent := map[string]int{}
				if before {
					f.do(t, "port-down", loser, "0")
					old := both[loser].transport(t, "rdma") // its successor finds the port down
					hold(t, old.PID).kill(t)
					both[loser].replaced(t, "rdma", old.Instance)
				} else {
					sender.over(t, receiver, rail0, sent)
					f.do(t, "port-down", loser, "0")
				}
				sender.over(t, receiver, rail1, sent)
				if before && loser == "sender" { // whoever lists the path has to ask for it
					receiver.over(t, sender, rail1, map[string]int{})
				}
				for name, n := range both {
					until(t, "rail 0 to be down at the "+name, func() bool { return n.rail(rail0) == engine.PathDown })
				}
				for _, r := range sender.send(t, receiver.address(), "down", 50) {
					if r.Path != rail1 || r.Copies != 1 {
						t.Fatalf("got %+v", r)
					}
				}
				f.do(t, "port-up", loser, "0")
				sender.over(t, receiver, rail0, sent)
				for name, n := range both {
					until(t, "rail 0 to be up at the "+name, func() bool { return n.rail(rail0) == engine.PathUp })
					if p := n.Stats().Pauses; p != 0 {
						t.Errorf("%d pauses for errors at the %s", p, name)
					}
				}
				var told []engine.EventKind
				for len(events.C()) > 0 {
					if ev := <-events.C(); ev.Path == rail0 && (ev.Kind == engine.PathPaused || ev.Kind == engine.PathResumed) {
						told = append(told, ev.Kind)
					}
				}
				if !slices.Equal(told, []engine.EventKind{engine.PathPaused, engine.PathResumed}) {
					t.Errorf("the sender told %v", told)
				}
				sent["down"] = 50
				receiver.inbox.expect(t, sent)
			})
		}
	}
}
