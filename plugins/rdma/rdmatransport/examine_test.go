package rdmatransport

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

// Each kind of machine is found to be what it is, and Configure comes to the
// same end.
func TestExamine(t *testing.T) {
	each := func(change func(*simverbs.Device)) func(*simverbs.Options) {
		return func(o *simverbs.Options) {
			for i := range o.Devices {
				change(&o.Devices[i])
			}
		}
	}
	only := func(index ...int) func(*simverbs.Options) {
		return each(func(d *simverbs.Device) {
			var kept []verbs.GID
			for _, i := range index {
				kept = append(kept, d.Ports[0].GIDs[i])
			}
			d.Ports[0].GIDs = kept
		})
	}
	const problem, warning, absent = sdk.FindingProblem, sdk.FindingWarning, sdk.FindingAbsent
	for _, c := range []struct {
		name     string
		machine  func(*simverbs.Options)
		settings string
		state    sdk.FindingState // the worst
		want     []string
		later    bool // Configure waits for the ports to come up
	}{
		{name: "as it should be", machine: func(*simverbs.Options) {}, state: sdk.FindingOK, want: []string{
			"device sim0|ok|can be opened; driver sim, NUMA node 0|",
			"port sim0/1|ok|active, ethernet, 100 Gb/s, MTU 4096, NUMA node 0, eth0, GID 3 10.77.0.1 roce-v2 (of 4: RoCE v2 over v1, global over link-local)|",
			"port sim1/1|ok|", "memlock|",
		}},
		{name: "no library", machine: func(o *simverbs.Options) { o.Missing, o.Devices = "libibverbs.so.1", nil }, state: absent,
			want: []string{"devices|absent|missing libibverbs.so.1 (file does not exist)|ask the simulation"}},
		{name: "no library for a device", machine: func(o *simverbs.Options) { o.Missing = "libibverbs.so.1" }, state: problem,
			want: []string{"devices|problem|missing libibverbs.so.1"}},
		{name: "no device", machine: func(o *simverbs.Options) { o.Devices = nil }, state: absent,
			want: []string{"devices|absent|no RDMA device|" + needDevice}},
		{name: "no permission", machine: each(func(d *simverbs.Device) { d.OpenError = syscall.EACCES }), state: problem,
			want: []string{"device sim0|problem|", "permission denied|" + openDevices, "device sim1|problem|"}},
		{name: "no permission for one", machine: func(o *simverbs.Options) { o.Devices[1].OpenError = syscall.EACCES }, state: warning,
			want: []string{"port sim0/1|ok|", "device sim1|warning|"}},
		{name: "memlock too low", machine: each(func(d *simverbs.Device) { d.Memlock = 64 << 10 }), state: problem,
			want: []string{"device sim0|problem|missing locked memory for 2048 KiB: the simulated limit is 64 KiB", "|raise RLIMIT_MEMLOCK"}},
		{name: "ports down", machine: each(func(d *simverbs.Device) { d.Ports[0].Down = true }), state: problem, later: true,
			want: []string{"port sim0/1|problem|down, ethernet", "|`ip link set eth0 up`"}},
		{name: "a port down", machine: func(o *simverbs.Options) { o.Devices[0].Ports[0].Down = true }, state: warning,
			want: []string{"port sim0/1|warning|down", "port sim1/1|ok|"}},
		{name: "link-local only", machine: only(0, 1), state: warning,
			want: []string{"port sim0/1|warning|active", "GID 1 fe80::1 roce-v2 (of 2: RoCE v2 over v1)|a link-local GID", "give eth0 an address"}},
		{name: "v1 only", machine: only(0, 2), state: warning,
			want: []string{"port sim0/1|warning|active", "GID 2 10.77.0.1 roce-v1 (of 2: global over link-local)|RoCE v1 stays"}},
		{name: "no GID", machine: only(), state: problem,
			want: []string{"port sim0/1|problem|active", "no GID; give its network device an address|give eth0 an address: `ip address"}},
		{name: "a GID that is not there", machine: func(*simverbs.Options) {}, settings: `{"gid_index": 9}`, state: problem,
			want: []string{"port sim0/1|problem|", "no GID of index 9|correct gid_index"}},
		{name: "the GID that was named", machine: func(*simverbs.Options) {}, settings: `{"gids": {"sim0": 3}, "devices": ["sim0"]}`, state: sdk.FindingOK,
			want: []string{"(as the settings say)", "device sim1|ok|left out by the settings|"}},
		{name: "a device that is not there", machine: func(*simverbs.Options) {}, settings: `{"devices": ["sim0", "mlx5_9"]}`, state: problem,
			want: []string{"settings|problem|devices names mlx5_9, and there is sim0, sim1|correct the settings"}},
		{name: "a device where there is none", machine: func(o *simverbs.Options) { o.Devices = nil }, settings: `{"devices": ["sim0"]}`, state: problem,
			want: []string{"settings|problem|devices names sim0, and there is no device at all|", "devices|absent|"}},
		{name: "a port that is not there", machine: func(*simverbs.Options) {}, settings: `{"devices": ["sim1", "sim0/7"]}`, state: problem,
			want: []string{"settings|problem|devices names sim0/7, and there is sim0 with port 1|correct the settings", "port sim1/1|ok|"}},
		{name: "a GID of a device that is not there", machine: func(*simverbs.Options) {}, settings: `{"gids": {"nosuch": 1, "sim0": 3}}`, state: problem,
			want: []string{"settings|problem|gids names nosuch, and there is sim0, sim1|"}},
		{name: "a GID of a port that is not there", machine: func(*simverbs.Options) {}, settings: `{"gids": {"sim0/7": 1}}`, state: problem,
			want: []string{"settings|problem|gids names sim0/7, and there is sim0 with port 1|"}},
		{name: "a named GID that is not there", machine: func(*simverbs.Options) {}, settings: `{"gids": {"sim0": 9}}`, state: problem,
			want: []string{"settings|problem|gids: sim0: port sim0/1 has no GID of index 9, and there is 0 fe80::1, 1 fe80::1, 2 10.77.0.1, 3 10.77.0.1|"}},
		{name: "a named GID of a port that is down", machine: func(o *simverbs.Options) { o.Devices[0].Ports[0].Down = true }, settings: `{"gids": {"sim0": 9}}`, state: warning,
			want: []string{"port sim0/1|warning|down"}},
		{name: "a GID of a device that is left out", machine: func(*simverbs.Options) {}, settings: `{"devices": ["sim1"], "gids": {"sim0": 9}}`, state: sdk.FindingOK},
		{name: "wrong settings", machine: func(*simverbs.Options) {}, settings: `{"device": 1}`, state: problem,
			want: []string{"settings|problem|rdma settings: "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFabric(t)
			o := f.options()
			c.machine(&o)
			look, use := f.transport(t, o), f.transport(t, o)
			settings := json.RawMessage(c.settings)
			var text strings.Builder
			worst := sdk.FindingOK
			rank := map[sdk.FindingState]int{warning: 1, absent: 2, problem: 3}
			for _, l := range look.Examine(t.Context(), settings) {
				fmt.Fprintf(&text, "%s|%s|%s|%s\n", l.Subject, l.State, l.Found, l.Do)
				if l.State != sdk.FindingOK && l.Subject != "memlock" && l.Do == "" && l.Subject != "settings" {
					t.Errorf("nothing to do about %s: %s", l.Subject, l.Found)
				}
				if l.Subject != "memlock" && rank[l.State] > rank[worst] { // this machine's own limit
					worst = l.State
				}
			}
			for _, want := range c.want {
				if !strings.Contains(text.String(), want) {
					t.Errorf("no %q in\n%s", want, &text)
				}
			}
			if worst != c.state {
				t.Errorf("%s, want %s:\n%s", worst, c.state, &text)
			}
			if a := look.provider.Accounts(); !a.IsClean() { // what was opened is closed again
				t.Errorf("left %+v", a)
			}
			_ = look.provider.Close()
			_, err := use.Configure(t.Context(), sdk.Config{Instance: 1, Settings: settings})
			if carries := worst == sdk.FindingOK || worst == warning || c.later; (err == nil) != carries {
				t.Errorf("found %s, and Configure says: %v", worst, err)
			}
			// What a person has to correct is not what the machine lacks.
			if wrong := strings.Contains(text.String(), "settings|problem|") || strings.Contains(text.String(), "correct gid_index"); wrong && !errors.Is(err, sdk.InvalidArgument) ||
				!wrong && err != nil && !errors.Is(err, sdk.Unsupported) {
				t.Errorf("the settings are wrong: %v, and Configure says: %v", wrong, err)
			}
			_ = use.Close(t.Context())
		})
	}
}

// The limit of locked memory against what receive_depth asks for.
func TestExamineMemlock(t *testing.T) {
	for _, c := range []struct {
		depth, devices, limit int
		want                  string
	}{
		{256, 1, math.MaxInt, "ok|memory that may be locked is unlimited: enough for receive_depth 256|"},
		{256, 1, 32 << 20, "ok|32768 KiB of memory may be locked, by 1 devices together: enough"},
		{256, 1, 8 << 20, "warning|8192 KiB of memory may be locked, by 1 devices together: that makes 64 of the 256 receive buffers of 64 KiB that receive_depth asks for, of each|raise the memlock limit"},
		{256, 2, 32 << 20, "that makes 128 of the 256"},
		{256, 2, 32 << 20, "64 MiB are needed"},
		{16, 2, 4 << 20, "ok|4096 KiB"},
		{256, 2, 4 << 20, "warning|4096 KiB of memory may be locked, by 2 devices together: that makes 16 of the 256"},
		{16, 3, 4<<20 + 1<<19, "warning|4608 KiB of memory may be locked, by 3 devices together: enough for 2 of them, with 2048 KiB each"},
		{16, 1, 2<<20 - 1, "problem|2047 KiB of memory may be locked, by 1 devices together: a device works with 2048 KiB at least|raise the memlock limit"},
		{256, 2, 0, "problem|0 KiB of memory may be locked, by 2 devices together: a device works with 2048 KiB at least|raise the memlock limit"},
	} {
		x := examination{t: &Transport{settings: settings{ReceiveDepth: c.depth}}, devices: c.devices}
		x.memlock(c.limit)
		if f := x.findings[0]; !strings.Contains(fmt.Sprintf("%s|%s|%s", f.State, f.Found, f.Do), c.want) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}
