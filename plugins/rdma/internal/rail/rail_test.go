package rail

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

func addr(s string) netip.Addr { return netip.AddrFrom16(netip.MustParseAddr(s).As16()) }

func port(nic, gid string, numa int) Port {
	return Port{NIC: nic, Number: 1, GID: addr(gid), Type: "roce-v2", Link: "ethernet", NUMA: numa, MTU: 4096}
}

func names(paths []Path) (out []string) {
	for _, p := range paths {
		out = append(out, p.Name)
	}
	return out
}

func TestChoose(t *testing.T) {
	const v1, v2 = verbs.GIDRoCEv1, verbs.GIDRoCEv2
	table := []verbs.GID{
		{Index: 0, Addr: addr("fe80::1"), Type: v1}, {Index: 1, Addr: addr("fe80::1"), Type: v2},
		{Index: 2, Addr: addr("10.0.0.1"), Type: v1}, {Index: 3, Addr: addr("10.0.0.1"), Type: v2},
		{Index: 4, Addr: addr("2001:db8::1"), Type: v2}, {Index: 5, Addr: addr("10.0.0.2"), Type: v2},
	}
	for _, c := range []struct {
		name string
		gids []verbs.GID
		want Want
		got  int // -1: an error
		why  string
	}{
		{"IPv4 over RoCE v2, the first of them", table, Any, 3, "of 6: RoCE v2 over v1, global over link-local, IPv4 over IPv6, the first of equals"},
		{"order does not matter", []verbs.GID{table[5], table[4], table[3], table[0]}, Any, 3, "of 4: RoCE v2 over v1, IPv4 over IPv6, the first of equals"},
		{"v2 over v1, although link-local", table[:3], Any, 1, "of 3: RoCE v2 over v1"},
		{"global over link-local", []verbs.GID{table[1], table[4]}, Any, 4, "of 2: global over link-local"},
		{"v1 if there is nothing else", table[:1], Any, 0, "the only one"},
		{"by index", table, Want{Index: 2}, 2, "as the settings say"},
		{"by index that is not there", table, Want{Index: 9}, -1, ""},
		{"by address", table, Want{Index: -1, Addr: netip.MustParseAddr("10.0.0.2")}, 5, "as the settings say"},
		{"by address, v2 of it", table, Want{Index: -1, Addr: netip.MustParseAddr("::ffff:10.0.0.1")}, 3, "as the settings say"},
		{"by address that is not there", table, Want{Index: -1, Addr: netip.MustParseAddr("10.0.0.9")}, -1, ""},
		{"an empty entry is none", []verbs.GID{{Index: 0, Addr: addr("::")}}, Any, -1, ""},
		{"an empty entry beats nobody", []verbs.GID{{Index: 0, Addr: addr("::")}, table[3]}, Any, 3, "the only one"},
		{"no entries", nil, Any, -1, ""},
	} {
		g, err := Choose(c.gids, c.want)
		if (err != nil) != (c.got < 0) || err == nil && g.Index != c.got {
			t.Errorf("%s: %+v, %v; want index %d", c.name, g, err, c.got)
		}
		if err == nil && Why(c.gids, c.want, g) != c.why {
			t.Errorf("%s: %s; want %s", c.name, Why(c.gids, c.want, g), c.why)
		}
	}
}

func TestPair(t *testing.T) {
	a := []Port{port("mlx5_0", "10.77.0.1", 0), port("mlx5_1", "10.77.1.1", 1)}
	b := []Port{port("mlx5_0", "10.77.0.2", 0), port("mlx5_1", "10.77.1.2", 1)}
	got := names(Pair(a, b, true))
	want := []string{"10.77.0.1-10.77.0.2", "10.77.1.1-10.77.1.2", "10.77.0.1-10.77.1.2", "10.77.0.2-10.77.1.1"}
	if !slices.Equal(got, want) {
		t.Errorf("paths %q, want %q", got, want)
	}

	// Other names there: the NUMA node counts.
	c := []Port{port("rocep1", "10.77.0.2", 1), port("rocep2", "10.77.1.2", 0)}
	if got := Pair(a, c, true); got[0].Remote.NIC != "rocep2" || got[1].Remote.NIC != "rocep1" {
		t.Errorf("not the same NUMA node first: %+v", got)
	}

	for _, other := range []func(*Port){
		func(p *Port) { p.Link = "infiniband" }, func(p *Port) { p.Type = "roce-v1" },
		func(p *Port) { p.GID = addr("2001:db8::1") },
	} {
		x := port("mlx5_0", "10.77.0.2", 0)
		other(&x)
		if got := Pair(a[:1], []Port{x}, true); len(got) != 0 {
			t.Errorf("paths between networks that cannot meet: %+v", got)
		}
	}
}

// Both ends give a path the same name and the same two ports, on two machines
// and within one.
func TestPairIsSymmetric(t *testing.T) {
	one := []Port{port("a", "10.0.0.1", 0), port("b", "10.0.0.2", 0), port("c", "10.0.0.9", 1)}
	two := []Port{port("a", "10.0.0.3", 0), port("b", "10.0.0.4", 1)}
	for _, c := range []struct{ l, r []Port }{{one, two}, {one, one}, {one, one[:2]}, {two, one[1:]}} {
		for _, lower := range []bool{true, false} {
			from, to := Pair(c.l, c.r, lower), Pair(c.r, c.l, !lower)
			back := make(map[string]Path)
			for _, p := range to {
				back[p.Name] = p
			}
			if len(from) != len(c.l)*len(c.r) || len(from) != len(to) {
				t.Fatalf("%d paths there, %d back, of %d ports and %d", len(from), len(to), len(c.l), len(c.r))
			}
			for _, p := range from {
				q, ok := back[p.Name]
				if !ok || q.Local.GID != p.Remote.GID || q.Remote.GID != p.Local.GID {
					t.Errorf("%s is %s to %s there, %s to %s here", p.Name, q.Local.GID, q.Remote.GID, p.Local.GID, p.Remote.GID)
				}
			}
		}
	}
}

func TestPairIsBounded(t *testing.T) {
	var l, r []Port
	for i := range byte(MaxPorts) {
		l = append(l, port("x", netip.AddrFrom4([4]byte{10, 0, 0, i + 1}).String(), 0))
		r = append(r, port("y", netip.AddrFrom4([4]byte{10, 0, 1, i + 1}).String(), 0))
	}
	if n := len(Pair(l, r, true)); n != MaxPaths {
		t.Errorf("%d paths", n)
	}
}

func TestPublishedPortsRoundTrip(t *testing.T) {
	ports := []Port{port("mlx5_0", "10.77.0.1", -1), port("mlx5_1", "2001:db8::1", 1)}
	ports[0].LID, ports[0].Gbps, ports[0].Netdev = 7, 400, "eth0"
	got, err := Parse(Format(ports))
	if err != nil || !reflect.DeepEqual(got, ports) {
		t.Errorf("%+v, %v", got, err)
	}
	if n := len(Format(slices.Repeat(ports[:1], MaxPorts))); n > 8<<10 {
		t.Errorf("%d ports take %d bytes", MaxPorts, n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Format([]Port{port("mlx5_0", "10.77.0.1", 0)}))
	f.Add(`[{"nic":"x","port":1,"gid":"fe80::1%eth0"}]`)
	f.Add(`[{}]`)
	local := []Port{port("mlx5_0", "10.77.0.1", 0)}
	f.Fuzz(func(t *testing.T, text string) {
		ports, err := Parse(text)
		if err != nil {
			return
		}
		for _, p := range Pair(local, ports, true) {
			if p.Name == "" || len(p.Name) > 128 {
				t.Errorf("a path called %q", p.Name)
			}
		}
	})
}
