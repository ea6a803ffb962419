// Package rail says which ways there are between the ports of two machines:
// which GID of a port is used, which ports make a path, what the path is
// called, and in which order paths are worth trying.
//
// It is pure, and what it is told of a peer's ports is untrusted: [Parse]
// validates it.
package rail

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

const (
	// MaxPorts bounds the ports that one side publishes, so that a list of
	// them stays within what attributes may hold.
	MaxPorts = 32
	// MaxPaths bounds the paths to one peer, as the contract does.
	MaxPaths = 64

	maxName = 64
)

// Port is one end of paths: a device's port and the GID that is used on it.
// This is how it is published to peers.
type Port struct {
	NIC    string     `json:"nic"`
	Number int        `json:"port"`
	GID    netip.Addr `json:"gid"`
	Type   string     `json:"gid_type"`
	LID    uint16     `json:"lid,omitempty"`
	Link   string     `json:"link"`
	NUMA   int        `json:"numa"`
	MTU    verbs.MTU  `json:"mtu"`
	Gbps   float64    `json:"gbps,omitempty"`
	Netdev string     `json:"netdev,omitempty"`
}

// Name is the port's name on its own machine: "mlx5_0/1".
func (p Port) Name() string { return p.NIC + "/" + strconv.Itoa(p.Number) }

// TypeName is how a GID's type is published.
func TypeName(t verbs.GIDType) string {
	switch t {
	case verbs.GIDRoCEv1:
		return "roce-v1"
	case verbs.GIDRoCEv2:
		return "roce-v2"
	}
	return "ib"
}

// LinkName is how a link layer is published.
func LinkName(l verbs.LinkLayer) string {
	switch l {
	case verbs.InfiniBand:
		return "infiniband"
	case verbs.Ethernet:
		return "ethernet"
	}
	return "unknown"
}

// Format encodes ports for publication.
func Format(ports []Port) string {
	b, err := json.Marshal(ports)
	if err != nil { // no field can fail
		panic(err)
	}
	return string(b)
}

// Parse decodes a peer's ports. Unknown fields are ignored.
func Parse(text string) ([]Port, error) {
	var ports []Port
	if err := json.Unmarshal([]byte(text), &ports); err != nil {
		return nil, fmt.Errorf("the peer's list of ports: %w", err)
	}
	if len(ports) > MaxPorts {
		return nil, fmt.Errorf("the peer publishes %d ports, at most %d are taken", len(ports), MaxPorts)
	}
	for i := range ports {
		p := &ports[i]
		switch {
		case len(p.NIC) > maxName || len(p.Type) > maxName || len(p.Link) > maxName || len(p.Netdev) > maxName:
			return nil, fmt.Errorf("the peer's port %d has a name over %d bytes", i, maxName)
		case p.Number < 1 || p.Number > 255:
			return nil, fmt.Errorf("the peer's port %d has number %d", i, p.Number)
		case !p.GID.IsValid() || p.GID.Zone() != "" || p.GID.IsUnspecified():
			return nil, fmt.Errorf("the peer's port %d has no usable GID", i)
		}
		p.GID = netip.AddrFrom16(p.GID.As16())
	}
	return ports, nil
}

// Path is a port here and a port there.
type Path struct {
	// Name is the same at both ends.
	Name          string
	Local, Remote Port
}

// Pair lists the paths between the ports of two machines, best first: ports of
// the same name, then of the same NUMA node, then as the ports are listed. The
// incarnations of both sides, of which localLower says which is the lower,
// break the tie in the name of a path whose reversal is a path, too, as it is
// between two processes of one machine.
func Pair(local, remote []Port, localLower bool) []Path {
	here, there := addresses(local), addresses(remote)
	var paths []Path
	seen := make(map[string]bool)
	for _, l := range local {
		for _, r := range remote {
			if !reach(l, r) {
				continue
			}
			low, high := l.GID, r.GID
			swap := high.Less(low)
			if here[r.GID] && there[l.GID] {
				swap = !localLower
			}
			if swap {
				low, high = high, low
			}
			name := text(low) + "-" + text(high)
			if !seen[name] {
				seen[name] = true
				paths = append(paths, Path{Name: name, Local: l, Remote: r})
			}
		}
	}
	slices.SortStableFunc(paths, func(a, b Path) int { return cmp.Compare(a.distance(), b.distance()) })
	return paths[:min(len(paths), MaxPaths)]
}

func (p Path) distance() int {
	switch {
	case p.Local.Name() == p.Remote.Name():
		return 0
	case p.Local.NUMA >= 0 && p.Local.NUMA == p.Remote.NUMA:
		return 1
	}
	return 2
}

// reach says whether two ports can be on one network at all.
func reach(a, b Port) bool {
	return a.Link == b.Link && a.Type == b.Type && a.GID.Is4In6() == b.GID.Is4In6() &&
		a.GID.IsLinkLocalUnicast() == b.GID.IsLinkLocalUnicast()
}

func addresses(ports []Port) map[netip.Addr]bool {
	m := make(map[netip.Addr]bool, len(ports))
	for _, p := range ports {
		m[p.GID] = true
	}
	return m
}

// text writes an IPv4-mapped GID as IPv4.
func text(a netip.Addr) string { return a.Unmap().String() }
