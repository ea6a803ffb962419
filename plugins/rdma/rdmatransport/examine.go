package rdmatransport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

// Examine implements [sdk.Examiner]. It opens the devices as Configure does,
// looks, and closes them again.
func (t *Transport) Examine(ctx context.Context, raw json.RawMessage) []sdk.Finding {
	s, err := parseSettings(raw)
	if err != nil {
		return []sdk.Finding{{Subject: "settings", State: sdk.FindingProblem, Found: err.Error()}}
	}
	t.settings, t.log = s, slog.New(slog.DiscardHandler)
	x := examination{t: t}
	infos, err := t.provider.Devices()
	var missing *verbs.MissingError
	switch {
	case errors.As(err, &missing) && missing.Present == "":
		x.failed("devices", sdk.FindingAbsent, err)
		return x.findings
	case err != nil:
		x.failed("devices", sdk.FindingProblem, err)
		return x.findings
	}
	t.faults = s.strangers(infos)
	if len(infos) == 0 {
		x.add("devices", sdk.FindingAbsent, "no RDMA device", needDevice)
	}
	for _, info := range infos {
		if ctx.Err() != nil {
			x.add("devices", sdk.FindingProblem, "interrupted before "+info.Name, "")
			break
		}
		x.device(info)
	}
	for _, err := range t.faults {
		x.add("settings", sdk.FindingProblem, err.Error(), correctNames)
	}
	if len(infos) == 0 {
		return x.findings
	}
	x.memlock(lockedLimit())
	return x.judged()
}

// examination collects what is found.
type examination struct {
	t        *Transport
	findings []sdk.Finding
	costs    []int // findings, each of which costs a device or a port
	carrying int   // ports
	devices  int   // opened, with a port that the settings allow
}

func (x *examination) add(subject string, state sdk.FindingState, found, do string) {
	x.findings = append(x.findings, sdk.Finding{Subject: subject, State: state, Found: line(found), Do: line(do)})
}

func line(s string) string { return strings.ReplaceAll(s, "\n", "; ") }

// failed adds a failure, its advice apart.
func (x *examination) failed(subject string, state sdk.FindingState, err error) {
	what, do := remedy(err)
	var missing *verbs.MissingError
	if errors.As(err, &missing) {
		what, do = (&verbs.MissingError{What: missing.What, Err: missing.Err}).Error(), missing.Do
	}
	x.add(subject, state, what, do)
}

// cost says that the last finding costs a device or a port.
func (x *examination) cost() { x.costs = append(x.costs, len(x.findings)-1) }

// judged returns the findings. What costs a device or a port is a warning
// while another port carries.
func (x *examination) judged() []sdk.Finding {
	if x.carrying == 0 {
		if len(x.costs) == 0 && len(x.t.faults) == 0 {
			x.add("devices", sdk.FindingProblem, "the settings allow no port of those that there are", "correct devices, or leave it out")
		}
		for _, i := range x.costs {
			x.findings[i].State = sdk.FindingProblem
		}
	}
	return x.findings
}

func (x *examination) device(info verbs.Info) {
	subject := "device " + info.Name
	d, err := x.t.openOne(info)
	if err != nil {
		x.failed(subject, sdk.FindingWarning, err)
		x.cost()
		return
	}
	if d == nil {
		x.add(subject, sdk.FindingOK, "left out by the settings", "")
		return
	}
	x.devices++
	all, err := d.dev.Ports()
	if err == nil {
		x.add(subject, sdk.FindingOK, fmt.Sprintf("can be opened; driver %s, NUMA node %d", info.Driver, info.NUMA), "")
		for _, p := range d.ports.list() {
			x.port(d, p, all[p.Number-1].GIDs)
		}
	}
	if err = errors.Join(err, d.dev.Close()); err != nil {
		x.failed(subject, sdk.FindingWarning, err)
		x.cost()
	}
}

func (x *examination) port(d *device, p localPort, gids []verbs.GID) {
	subject, netdev := "port "+p.Name(), p.Netdev
	if netdev == "" {
		netdev = "its network device"
	}
	want := x.t.settings.gid(d.name, p.Name())
	ethernet := p.Link == rail.LinkName(verbs.Ethernet)
	switch {
	case !p.active:
		do := "look at the cable and the switch"
		if ethernet {
			do = "`ip link set " + netdev + " up`; " + do
		} else {
			do += ", and whether a subnet manager runs"
		}
		x.add(subject, sdk.FindingWarning, p.detail(), do)
		x.cost()
	case !p.usable() && want != rail.Any:
		x.add(subject, sdk.FindingWarning, p.detail(), "correct gid_index or gids; `rdma link` and `ip address` show what there is")
		x.cost()
	case !p.usable():
		x.add(subject, sdk.FindingWarning, p.detail(), "give "+netdev+" an address: `ip address add ... dev "+netdev+"`")
		x.cost()
	default:
		x.carrying++
		found := p.detail() + " (" + rail.Why(gids, want, verbs.GID{Index: p.index, Addr: p.GID, Type: typeOf(gids, p.index)}) + ")"
		switch {
		case ethernet && p.Type == rail.TypeName(verbs.GIDRoCEv1):
			x.add(subject, sdk.FindingWarning, found, "RoCE v1 stays within one Ethernet segment and meets peers with v1 only; "+
				"for v2 give "+netdev+" an address, or set the driver's default to v2")
		case ethernet && p.GID.IsLinkLocalUnicast():
			x.add(subject, sdk.FindingWarning, found, "a link-local GID meets peers on the same link only, and only those that have no other: give "+netdev+" an address")
		default:
			x.add(subject, sdk.FindingOK, found, "")
		}
	}
}

func typeOf(gids []verbs.GID, index int) verbs.GIDType {
	for _, g := range gids {
		if g.Index == index {
			return g.Type
		}
	}
	return verbs.GIDInfiniBand
}

// memlock compares the limit, which all devices share, with what they need.
func (x *examination) memlock(limit int) {
	if x.devices == 0 {
		return
	}
	wanted := x.t.settings.ReceiveDepth
	text := "memory that may be locked is unlimited"
	if limit < math.MaxInt {
		text = fmt.Sprintf("%d KiB of memory may be locked, by %d devices together", limit>>10, x.devices)
	}
	do := fmt.Sprintf("%s; %d MiB are needed, or a lower receive_depth or fewer devices", raiseMemlock, 2*wanted*maxFrame*x.devices>>20)
	switch n := receiveBuffers(wanted, limit/x.devices); {
	case limit < leastLocked:
		x.add("memlock", sdk.FindingProblem, fmt.Sprintf("%s: a device works with %d KiB at least", text, leastLocked>>10), do)
	case limit/x.devices < leastLocked:
		x.add("memlock", sdk.FindingWarning, fmt.Sprintf("%s: enough for %d of them, with %d KiB each at least", text, limit/leastLocked, leastLocked>>10), do)
	case n < wanted:
		x.add("memlock", sdk.FindingWarning, fmt.Sprintf("%s: that makes %d of the %d receive buffers of 64 KiB that receive_depth asks for, of each", text, n, wanted), do)
	default:
		x.add("memlock", sdk.FindingOK, fmt.Sprintf("%s: enough for receive_depth %d", text, wanted), "")
	}
}
