//go:build linux && cgo

package ibverbs

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// tree makes a host of files; a text "-> x" is a link.
func tree(t testing.TB, files map[string]string) host {
	t.Helper()
	h := host{t.TempDir()}
	for name, text := range files {
		h.write(t, name, text)
	}
	return h
}

func (h host) write(t testing.TB, name, text string) {
	t.Helper()
	path := filepath.Join(h.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	var err error
	if to, isLink := strings.CutPrefix(text, "-> "); isLink {
		err = os.Symlink(to, path)
	} else {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const class = "sys/class/infiniband/"

func TestInfo(t *testing.T) {
	h := tree(t, map[string]string{
		class + "mlx5_0/device/driver":              "-> ../../bus/pci/drivers/mlx5_core",
		class + "mlx5_0/device/numa_node":           "1\n",
		class + "mlx5_0/ports/1/gid_attrs/ndevs/0":  "",
		class + "mlx5_0/ports/1/gid_attrs/ndevs/3":  "ens1f0\n",
		class + "mlx5_0/ports/2/state":              "1: DOWN\n",
		class + "mlx5_0/ports/10/gid_attrs/ndevs/0": "ens1f9\n",
		class + "rxe0/parent":                       "eth0\n",
		class + "rxe0/ports/1/state":                "4: ACTIVE\n",
		"sys/class/net/eth0/device/numa_node":       "0\n",
		class + "bare/ports/1/state":                "4: ACTIVE\n",
	})
	for name, want := range map[string]verbs.Info{
		"mlx5_0": {Name: "mlx5_0", Driver: "mlx5_core", NUMA: 1, Netdevs: []string{"ens1f0", "", "ens1f9"}},
		"rxe0":   {Name: "rxe0", Driver: "rxe", NUMA: 0, Netdevs: []string{"eth0"}},
		"bare":   {Name: "bare", NUMA: -1, Netdevs: []string{""}},
		"gone":   {Name: "gone", NUMA: -1},
	} {
		if got := h.info(name); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestGIDsOfSysfs(t *testing.T) {
	h := tree(t, map[string]string{
		class + "x/ports/2/gids/0":             "0000:0000:0000:0000:0000:0000:0000:0000\n",
		class + "x/ports/2/gids/2":             "0000:0000:0000:0000:0000:ffff:0a4d:0001\n",
		class + "x/ports/2/gid_attrs/types/2":  "RoCE v2\n",
		class + "x/ports/2/gids/10":            "fe80:0000:0000:0000:0000:0000:0000:0002\n",
		class + "x/ports/2/gid_attrs/types/10": "IB/RoCE v1\n",
		class + "x/ports/2/gids/3":             "nonsense",
	})
	v4, v6 := netip.AddrFrom16(netip.MustParseAddr("::ffff:10.77.0.1").As16()), netip.MustParseAddr("fe80::2")
	for link, want := range map[verbs.LinkLayer][]verbs.GID{
		verbs.Ethernet:   {{Index: 2, Addr: v4, Type: verbs.GIDRoCEv2}, {Index: 10, Addr: v6, Type: verbs.GIDRoCEv1}},
		verbs.InfiniBand: {{Index: 2, Addr: v4}, {Index: 10, Addr: v6}},
	} {
		if got := h.gids("x", 2, link); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	if got := h.gids("x", 1, verbs.Ethernet); got != nil {
		t.Error(got)
	}
}

// TestMissing: each thing that a machine can lack is told with what to do.
func TestMissing(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		what  string
		do    string
		here  string
	}{
		{nil, "support in the kernel", "modprobe", ""},
		{map[string]string{class + "rxe0/parent": ""}, "uverbs*, although there is rxe0", "ib_uverbs", "rxe0"},
		{map[string]string{class + "rxe0/parent": "", "dev/infiniband/uverbs0": ""}, "driver for rxe0", "ibverbs-providers", "rxe0"},
	} {
		err := tree(t, c.files).missing()
		var m *verbs.MissingError
		if !errors.As(err, &m) || !strings.Contains(m.What, c.what) || !strings.Contains(m.Do, c.do) || m.Present != c.here {
			t.Errorf("%v: %v, %q is there", c.files, err, m.Present)
		}
	}
	none := host{t.TempDir()}
	must(t, os.MkdirAll(filepath.Join(none.root, class), 0o755))
	must(t, none.missing()) // nothing is missing where there is no device
}

func TestNodes(t *testing.T) {
	h := tree(t, map[string]string{"dev/infiniband/uverbs0": ""})
	must(t, h.accessible("uverbs0"))
	var m *verbs.MissingError
	if err := h.accessible("uverbs1"); !errors.As(err, &m) || !strings.Contains(m.Do, "--device=") {
		t.Error(err)
	}
	// Root may open everything, so the answer is made up.
	err := inaccessible("/dev/infiniband/uverbs0", syscall.EACCES)
	if !errors.As(err, &m) || !strings.Contains(m.What, "permission") || !errors.Is(err, syscall.EACCES) {
		t.Error(err)
	}
}

// TestHere: on any machine the provider answers with devices or with what is missing.
func TestHere(t *testing.T) {
	infos, err := New().Devices()
	var m *verbs.MissingError
	switch {
	case err == nil:
		t.Logf("%+v", infos)
	case !errors.As(err, &m) || m.What == "" || m.Do == "":
		t.Errorf("%v does not say what is missing and what to do", err)
	default:
		t.Log(err)
		if _, err := New().Open("mlx5_0"); err == nil {
			t.Error("a device was opened")
		}
	}

	with := tree(t, map[string]string{class + "rxe0/parent": ""})
	_, err = (&provider{file: "libibverbs-that-is-not.so.1", host: with}).Devices()
	if !errors.As(err, &m) || m.Present != "rxe0" {
		t.Errorf("without the library, with a device: %v", err)
	}
	_, err = (&provider{file: "libibverbs-that-is-not.so.1", host: host{t.TempDir()}}).Devices()
	if !errors.As(err, &m) || m.Present != "" || !errors.As(err, &m) || !strings.Contains(err.Error(), "libibverbs1") || !strings.Contains(err.Error(), "cannot open shared object") {
		t.Errorf("without the library: %v", err)
	}
}

func TestPortCodes(t *testing.T) {
	for m := verbs.MTU(256); m <= 4096; m *= 2 {
		if got := mtuOf(mtuCode(m)); got != m {
			t.Errorf("%d became %d", m, got)
		}
	}
	if mtuCode(256) != 1 || mtuCode(4096) != 5 || mtuOf(0) != 0 || mtuOf(6) != 0 {
		t.Error(mtuCode(256), mtuCode(4096), mtuOf(0), mtuOf(6))
	}
	for _, c := range []struct {
		width, speed int
		want         float64
	}{{1, 1, 2.5}, {2, 32, 100}, {2, 64, 200}, {2, 128, 400}, {16, 64, 100}, {4, 4, 80}, {8, 16, 168}, {0, 0, 0}} {
		if got := gbps(c.width, c.speed); got != c.want {
			t.Errorf("width %d, speed %d: %v, want %v", c.width, c.speed, got, c.want)
		}
	}
	if portState(4) != "active" || portState(1) != "down" || portState(9) != "state 9" || portState(-1) != "state -1" {
		t.Error("states")
	}
}
