package simverbs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// PortName names a port of the fabric.
type PortName struct {
	Host, Device string
	Port         int
}

func (n PortName) String() string { return fmt.Sprintf("%s/%s/%d", n.Host, n.Device, n.Port) }

// fabric is what every process of the directory knows of all ports: kept in
// one file, changed under a lock, read again by a process that is told to or
// that misses an address.
type fabric struct {
	Ports map[string]*fabricPort
	// Cuts holds the directed pairs that carry nothing: "a/x/1 b/y/1".
	Cuts map[string]bool
}

type fabricPort struct {
	Name PortName
	Down bool `json:",omitempty"`
	LID  uint16
	GIDs []verbs.GID
	// Changed: the GIDs are not the host's own ones any more, and a process
	// that starts takes them as they are.
	Changed bool `json:",omitempty"`
}

func cutName(from, to string) string { return from + " " + to }

// carries reports whether a packet gets from one port to the other.
func (f *fabric) carries(from, to string) bool {
	a, b := f.Ports[from], f.Ports[to]
	return a != nil && b != nil && !a.Down && !b.Down && !f.Cuts[cutName(from, to)]
}

// byGID finds the port with an address.
func (f *fabric) byGID(gid [16]byte) *fabricPort {
	for _, p := range f.Ports {
		if p.hasGID(gid) {
			return p
		}
	}
	return nil
}

func (p *fabricPort) hasGID(gid [16]byte) bool {
	for _, g := range p.GIDs {
		if g.Addr.As16() == gid {
			return true
		}
	}
	return false
}

func (f *fabric) byLID(lid uint16) *fabricPort {
	for _, p := range f.Ports {
		if lid != 0 && p.LID == lid {
			return p
		}
	}
	return nil
}

// register adds a host's ports.
func (f *fabric) register(o Options) error {
	for _, d := range o.Devices {
		for i, p := range d.Ports {
			name := PortName{o.Host, d.Name, i + 1}
			e := f.Ports[name.String()]
			if e == nil {
				e = &fabricPort{Name: name, Down: p.Down}
				f.Ports[name.String()] = e
			}
			e.LID = p.LID
			if e.Changed {
				continue
			}
			e.GIDs = nil
			for _, g := range p.GIDs {
				if !g.Addr.IsValid() {
					return fmt.Errorf("simverbs: %s: a GID without an address", name)
				}
				g.Addr = netip.AddrFrom16(g.Addr.As16())
				if other := f.byGID(g.Addr.As16()); other != nil && other != e {
					return fmt.Errorf("simverbs: %s: GID %s is %s's", name, g.Addr, other.Name)
				}
				e.GIDs = append(e.GIDs, g)
			}
		}
	}
	return nil
}

// readFabric fails with fs.ErrNotExist, and an empty fabric, if there is none yet.
func readFabric(dir string) (*fabric, error) {
	f := &fabric{}
	b, err := os.ReadFile(filepath.Join(dir, "fabric.json"))
	if err == nil {
		err = json.Unmarshal(b, f)
	}
	if f.Ports == nil {
		f.Ports = map[string]*fabricPort{}
	}
	if f.Cuts == nil {
		f.Cuts = map[string]bool{}
	}
	return f, err
}

// changeFabric changes the file under the directory's lock.
func changeFabric(dir string, change func(*fabric) error) error {
	return locked(dir, func() error {
		f, err := readFabric(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := change(f); err != nil {
			return err
		}
		b, err := json.MarshalIndent(f, "", " ")
		if err != nil {
			return err
		}
		next := filepath.Join(dir, "fabric.json.next")
		if err := os.WriteFile(next, b, 0o600); err != nil {
			return err
		}
		return os.Rename(next, filepath.Join(dir, "fabric.json"))
	})
}

// locked runs do while no other process of the directory is in locked. The
// lock is the kernel's: it goes with a process that is killed.
func locked(dir string, do func() error) error {
	l, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer l.Close()
	for {
		err = syscall.Flock(int(l.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return err
	}
	return do()
}
