package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/admin"
)

// hawser peers says for how long a peer is silent and a path paused, and which
// time in a row that is.
func TestPeersShowMarksAndPauses(t *testing.T) {
	now := time.Now()
	var out bytes.Buffer
	printPeers(&out, admin.Peers{Total: 1, Peers: []admin.Peer{{
		Name: "b", Address: "b:1", Session: "open", Heard: now.Add(-8 * time.Second),
		Cooldowns: 2, SilentUntil: now.Add(6400 * time.Millisecond),
		Paths: []admin.Path{
			{Transport: "tcp", State: "paused", Since: now.Add(-time.Minute), Pauses: 3, PausedUntil: now.Add(72 * time.Second)},
			{Transport: "rdma", State: "up", Since: now.Add(-3 * time.Second), Pauses: 1},
			{Transport: "rpcfallback", State: "up", Since: now.Add(-3 * time.Second)},
		},
	}}}, now)
	for _, want := range []string{
		"8s ago, silent (cooldown 2, 6.4s more)", "paused (pause 3, 1m12s more)", "up for 3s, on probation after pause 1 ", "up for 3s  ",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in:\n%s", want, &out)
		}
	}
	out.Reset()
	printRunning(&out, []admin.Transport{{Name: "tcp", State: "up", Since: now, Restarts: 4, Dropped: 17}}, now)
	if lines := strings.Split(out.String(), "\n"); !strings.Contains(lines[0], "DROPPED") || !strings.Contains(lines[1], "4         17") {
		t.Errorf("the transports:\n%s", &out)
	}
}
