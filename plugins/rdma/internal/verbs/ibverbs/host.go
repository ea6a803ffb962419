//go:build linux && cgo

package ibverbs

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// host is what the kernel's file systems say of devices. A test gives it
// another root.
type host struct{ root string }

func (h host) class(device string, more ...string) string {
	return filepath.Join(append([]string{h.root, "sys/class/infiniband", device}, more...)...)
}

// read returns a file's text without the space around it, "" if there is none.
func read(path ...string) string {
	b, _ := os.ReadFile(filepath.Join(path...))
	return strings.TrimSpace(string(b))
}

// names lists a directory in the order of people: 2 before 10.
func names(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	slices.SortFunc(list, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return list
}

func (h host) info(device string) verbs.Info {
	i := verbs.Info{Name: device, NUMA: -1}
	for _, port := range names(h.class(device, "ports")) {
		i.Netdevs = append(i.Netdevs, h.netdev(device, port))
	}
	if driver, err := os.Readlink(h.class(device, "device", "driver")); err == nil {
		i.Driver = filepath.Base(driver)
	} else if read(h.class(device, "parent")) != "" {
		i.Driver = "rxe" // hangs on a network device, not on a bus
	}
	i.NUMA = numa(h.class(device, "device"))
	if i.NUMA < 0 && len(i.Netdevs) > 0 && i.Netdevs[0] != "" {
		i.NUMA = numa(filepath.Join(h.root, "sys/class/net", i.Netdevs[0], "device"))
	}
	return i
}

func numa(device string) int {
	if n, err := strconv.Atoi(read(device, "numa_node")); err == nil {
		return n
	}
	return -1
}

// netdev returns a port's network device. The port's GIDs know it; Soft-RoCE's
// device knows it also while the link is down.
func (h host) netdev(device, port string) string {
	if dev := read(h.class(device, "parent")); dev != "" {
		return dev
	}
	dir := h.class(device, "ports", port, "gid_attrs/ndevs")
	for _, index := range names(dir) {
		if dev := read(dir, index); dev != "" {
			return dev
		}
	}
	return ""
}

// gids reads a port's table, for a library that is too old to be asked.
func (h host) gids(device string, port int, link verbs.LinkLayer) []verbs.GID {
	var gids []verbs.GID
	dir := h.class(device, "ports", strconv.Itoa(port))
	for _, name := range names(filepath.Join(dir, "gids")) {
		index, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		addr, err := netip.ParseAddr(read(dir, "gids", name))
		if err != nil || addr.IsUnspecified() {
			continue
		}
		g := verbs.GID{Index: index, Addr: netip.AddrFrom16(addr.As16())}
		switch {
		case link != verbs.Ethernet:
		case read(dir, "gid_attrs/types", name) == "RoCE v2":
			g.Type = verbs.GIDRoCEv2
		default:
			g.Type = verbs.GIDRoCEv1
		}
		gids = append(gids, g)
	}
	return gids
}
