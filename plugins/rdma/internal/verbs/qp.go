package verbs

// QPInit is what a reliable-connected queue pair is made with.
type QPInit struct {
	SendCQ, RecvCQ CQ
	// SRQ may be nil: a queue pair that only reads and writes.
	SRQ       SRQ
	SendWRs   int
	MaxSGE    int
	MaxInline int
}

// QP is a reliable-connected queue pair. A new one is in RESET.
type QP interface {
	// Num is unique among the device's queue pairs, not beyond.
	Num() uint32
	ToInit(InitAttr) error
	ToRTR(RTRAttr) error
	ToRTS(RTSAttr) error
	// ToError flushes everything posted.
	ToError() error
	// ToReset drops everything posted, and the completions not yet polled where
	// the device does that.
	ToReset() error
	State() (QPState, error)
	// Post posts work requests in order. It returns how many were posted,
	// fewer than all only with an error: the others never left the host.
	Post(wrs []SendWR) (int, error)
	// Close destroys the queue pair. What was posted is gone, without
	// completions.
	Close() error
}

// QPState is a queue pair's state.
type QPState uint8

// The states.
const (
	Reset QPState = iota
	Init
	RTR
	RTS
	SQD
	SQE
	Err
)

func (s QPState) String() string {
	return [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}[s%7]
}

// InitAttr moves RESET to INIT.
type InitAttr struct {
	Port      int
	PkeyIndex int
	Access    Access // what the peer may do: RemoteRead, RemoteWrite
}

// RTRAttr moves INIT to RTR: the peer's end is known.
type RTRAttr struct {
	MTU          MTU
	PeerQP       uint32
	PeerPSN      uint32 // 24 bits
	MaxDestRD    int
	MinRNRTimer  int // verbs' code 0 to 31
	Port         int
	PeerLID      uint16
	ServiceLevel int
	// Global routes by GID: always on Ethernet, across subnets on InfiniBand.
	Global       bool
	PeerGID      [16]byte
	SGIDIndex    int
	HopLimit     int
	TrafficClass int
	FlowLabel    uint32
}

// RTSAttr moves RTR to RTS.
type RTSAttr struct {
	Timeout  int // 4.096 us times 2 to that power; 0 is for ever
	RetryCnt int // 0 to 7
	RNRRetry int // 0 to 7; 7 is for ever
	PSN      uint32
	MaxRD    int
}
