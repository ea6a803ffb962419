package verbs

import "net/netip"

// Provider finds and opens devices.
type Provider interface {
	// Devices lists the devices of this machine, by name. It fails with a
	// [*MissingError] where the library or the kernel's support is missing;
	// no devices are an empty list.
	Devices() ([]Info, error)

	// Open opens a device by name.
	Open(name string) (Device, error)
}

// Info is what is known of a device without opening it.
type Info struct {
	// Name is the verbs name: mlx5_0, rxe0.
	Name string
	// Driver is the kernel's, for people. May be empty.
	Driver string
	// NUMA is the node the device hangs on, -1 if unknown.
	NUMA int
	// Netdevs holds the network device of each port, "" for none; Netdevs[0]
	// is port 1's.
	Netdevs []string
}

// MissingError says what this machine lacks for RDMA, and what to do.
type MissingError struct {
	What string // "libibverbs.so.1", "/dev/infiniband/uverbs0"
	Do   string // "install libibverbs1"
	Err  error
	// Present is a device that this machine has all the same: then something
	// is to be mended. Empty if there is nothing to use.
	Present string
}

func (e *MissingError) Error() string {
	s := "missing " + e.What
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	if e.Do != "" {
		s += ": " + e.Do
	}
	return s
}

func (e *MissingError) Unwrap() error { return e.Err }

// LinkLayer is what a port speaks.
type LinkLayer uint8

const (
	// LinkUnknown: the port does not say.
	LinkUnknown LinkLayer = iota
	// InfiniBand: addressed by LID, and by GID across subnets.
	InfiniBand
	// Ethernet: RoCE, addressed by GID.
	Ethernet
)

// Limits are a device's.
type Limits struct {
	QPs, CQs, MRs, SRQs int
	QPWRs               int // work requests of one queue of a queue pair
	CQEntries           int
	SRQWRs              int
	RDAtomic            int // RDMA READs as target, per queue pair
	InitRDAtomic        int // RDMA READs as initiator, per queue pair
}

// Port is a port's state. Ports count from 1.
type Port struct {
	Number    int
	Active    bool
	State     string // verbs' name of it: "active", "down"
	Link      LinkLayer
	MTU       MTU // the active one
	LID       uint16
	SMLID     uint16
	Gbps      float64 // width times speed
	GIDs      []GID   // the valid ones, by index
	PkeyCount int
}

// GID is an entry of a port's table.
type GID struct {
	Index int
	Addr  netip.Addr // always 16 bytes; IPv4-mapped for RoCE v2 over IPv4
	Type  GIDType
}

// GIDType says which protocol a GID belongs to.
type GIDType uint8

const (
	// GIDInfiniBand is an InfiniBand port's.
	GIDInfiniBand GIDType = iota
	// GIDRoCEv1 is carried in Ethernet frames, not routable.
	GIDRoCEv1
	// GIDRoCEv2 is carried in UDP.
	GIDRoCEv2
)

// MTU is a path MTU in bytes: 256, 512, 1024, 2048 or 4096.
type MTU int

// Valid reports whether verbs has this MTU.
func (m MTU) Valid() bool {
	switch m {
	case 256, 512, 1024, 2048, 4096:
		return true
	}
	return false
}
