package rdmatransport

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// localPort is a port of this machine, as it was when it was last asked.
type localPort struct {
	rail.Port
	index   int // of the GID
	rank    int // in the user's list
	active  bool
	state   string
	trouble error // why it cannot be used
}

// usable says whether peers can be told of it.
func (p *localPort) usable() bool { return p.trouble == nil }

// detail describes the port to people.
func (p *localPort) detail() string {
	s := fmt.Sprintf("%s, %s, %g Gb/s, MTU %d, NUMA node %d", p.state, p.Link, p.Gbps, p.MTU, p.NUMA)
	if p.Netdev != "" {
		s += ", " + p.Netdev
	}
	if p.trouble != nil {
		return s + ": " + p.trouble.Error()
	}
	return s + fmt.Sprintf(", GID %d %s %s", p.index, p.GID.Unmap(), p.Type)
}

// ports are a device's, by number.
type ports struct {
	mu sync.Mutex
	m  map[int]localPort
}

// list returns the ports in order.
func (p *ports) list() []localPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.m), func(a, b localPort) int { return a.Number - b.Number })
}

func (p *ports) get(number int) localPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.m[number]
}

// refreshPorts asks the device for the state of its ports.
func (d *device) refreshPorts() error {
	all, err := d.dev.Ports()
	if err != nil {
		return err
	}
	now := make(map[int]localPort)
	for _, p := range all {
		name := rail.Port{NIC: d.name, Number: p.Number}.Name()
		if rank, ok := d.settings.rank(d.name, name); ok {
			now[p.Number] = d.localPort(p, rank, d.settings.gid(d.name, name))
		}
	}
	d.ports.mu.Lock()
	defer d.ports.mu.Unlock()
	for n, old := range d.ports.m {
		// A port that is down may have lost its GIDs; they come back with it.
		if p := now[n]; !p.usable() && old.usable() && !p.active {
			p.GID, p.Type, p.index, p.trouble = old.GID, old.Type, old.index, nil
			now[n] = p
		}
	}
	d.ports.m = now
	return nil
}

func (d *device) localPort(p verbs.Port, rank int, want rail.Want) localPort {
	l := localPort{
		Port: rail.Port{
			NIC: d.name, Number: p.Number, LID: p.LID, Link: rail.LinkName(p.Link),
			NUMA: d.info.NUMA, MTU: p.MTU, Gbps: p.Gbps,
		},
		rank: rank, active: p.Active, state: p.State,
	}
	if i := p.Number - 1; i < len(d.info.Netdevs) {
		l.Netdev = d.info.Netdevs[i]
	}
	gid, err := rail.Choose(p.GIDs, want)
	if err != nil {
		l.trouble = err
		return l
	}
	l.GID, l.Type, l.index = gid.Addr, rail.TypeName(gid.Type), gid.Index
	return l
}
