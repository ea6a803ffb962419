package verbs

import "fmt"

// Device is an open device.
type Device interface {
	Name() string
	Limits() (Limits, error)
	// Ports returns the state of every port, as it is now.
	Ports() ([]Port, error)
	// Event waits for the next asynchronous event. It returns [ErrClosed] once
	// Interrupt was called. Events of an object that is being destroyed may be
	// lost, never delivered afterwards.
	Event() (Event, error)
	// Interrupt makes Event return [ErrClosed], now and from then on.
	Interrupt()

	AllocPD() (PD, error)
	CreateChannel() (Channel, error)
	// CreateCQ makes a completion queue of at least that many entries, whose
	// events go to the channel.
	CreateCQ(entries int, ch Channel) (CQ, error)

	// Close fails with EBUSY while an object of the device exists.
	Close() error
}

// Event is an asynchronous event.
type Event struct {
	Type EventType
	// QP is the number of the queue pair that the event is about: QPFatal,
	// QPRequestError, QPAccessError, LastWQEReached, CommEstablished.
	QP uint32
	// Port is that of PortActive, PortError, GIDChange, LIDChange.
	Port int
}

// EventType is one of the events that the transport knows.
type EventType uint8

const (
	// EventOther: nothing that the transport acts on.
	EventOther EventType = iota
	// PortActive: the port carries traffic again.
	PortActive
	// PortError: it does not.
	PortError
	// GIDChange: the port's GID table changed.
	GIDChange
	// LIDChange: the port's LID changed.
	LIDChange
	// QPFatal: the queue pair is in the error state.
	QPFatal
	// QPRequestError: likewise, for a request that it cannot carry out.
	QPRequestError
	// QPAccessError: likewise, for a request that it may not carry out.
	QPAccessError
	// CommEstablished: the first message came to a queue pair not yet in RTS.
	CommEstablished
	// LastWQEReached: a queue pair in the error state takes no more receives
	// from its shared receive queue.
	LastWQEReached
	// DeviceFatal: the device is lost; everything on it has to go.
	DeviceFatal
	// CQError: a completion queue overran.
	CQError
	// SRQError: a shared receive queue failed.
	SRQError
)

// PD is a protection domain.
type PD interface {
	// RegisterMemory registers mem, which must stay mapped and in place until
	// the region is closed: never the Go heap's.
	RegisterMemory(mem []byte, access Access) (MR, error)
	CreateSRQ(wrs int) (SRQ, error)
	CreateQP(init QPInit) (QP, error)
	// Close fails with EBUSY while an object of the domain exists.
	Close() error
}

// Access is what a memory region allows besides local reads.
type Access uint8

// What else it allows: writes by this device, writes and reads by peers' devices.
const (
	LocalWrite  Access = 1 << 0
	RemoteWrite Access = 1 << 1
	RemoteRead  Access = 1 << 2
)

// MR is a registered memory region.
type MR interface {
	LKey() uint32
	RKey() uint32
	Close() error
}

// SRQ is a shared receive queue.
type SRQ interface {
	// Post posts receives in order. It returns how many were posted, fewer
	// than all only with an error.
	Post(wrs []RecvWR) (int, error)
	// Close fails with EBUSY while a queue pair uses the queue.
	Close() error
}

// Channel tells that completion queues have something.
type Channel interface {
	// Wait returns once an armed completion queue of the channel got a
	// completion, or [ErrClosed] once Interrupt was called.
	Wait() error
	// Interrupt makes Wait return [ErrClosed], now and from then on.
	Interrupt()
	Close() error
}

// CQ is a completion queue.
type CQ interface {
	// Poll takes up to len(wcs) completions.
	Poll(wcs []WC) (int, error)
	// Arm asks for one event on the channel for the next completion. What came
	// before it does not count, so poll once more afterwards.
	Arm() error
	Close() error
}

// RecvWR is a receive into registered memory.
type RecvWR struct {
	ID     uint64
	Addr   uint64
	LKey   uint32
	Length uint32
}

// SendWR is a send, a write or a read of one range of registered memory.
type SendWR struct {
	ID        uint64
	Addr      uint64
	RemoteAt  uint64 // Write, Read
	LKey      uint32
	Length    uint32
	RKey      uint32 // Write, Read
	Imm       uint32 // SendImm
	Op        Op
	Signaled  bool // a successful one has a completion too
	Inline    bool // the bytes are copied while posting; LKey is not used
	Fenced    bool // after the reads before it
	Solicited bool
}

// Op is what a work request does.
type Op uint8

// What work requests do.
const (
	Send Op = iota
	SendImm
	Write
	Read
)

// WC is a completion.
type WC struct {
	ID     uint64
	QP     uint32
	Length uint32 // received bytes
	Imm    uint32
	Status Status
	// Vendor is the device's own error code, for people.
	Vendor uint32
	Recv   bool
	HasImm bool
}

// Status is a completion's result, with verbs' numbers.
type Status uint8

// The results.
const (
	Success          Status = 0
	LocalLength      Status = 1
	LocalQPOp        Status = 2
	LocalProtection  Status = 4
	Flushed          Status = 5
	BadResponse      Status = 7
	LocalAccess      Status = 8
	RemoteInvalidReq Status = 9
	RemoteAccess     Status = 10
	RemoteOp         Status = 11
	RetryExceeded    Status = 12
	RNRExceeded      Status = 13
	RemoteAborted    Status = 16
	FatalError       Status = 19
	ResponseTimeout  Status = 20
	GeneralError     Status = 21
)

func (s Status) String() string {
	switch s {
	case Success:
		return "success"
	case LocalLength:
		return "local length error"
	case LocalQPOp:
		return "local queue pair operation error"
	case LocalProtection:
		return "local protection error"
	case Flushed:
		return "flushed"
	case BadResponse:
		return "bad response"
	case LocalAccess:
		return "local access error"
	case RemoteInvalidReq:
		return "remote invalid request"
	case RemoteAccess:
		return "remote access error"
	case RemoteOp:
		return "remote operation error"
	case RetryExceeded:
		return "retries exhausted: no acknowledgement from the peer's device"
	case RNRExceeded:
		return "retries exhausted: the peer had no receive posted"
	case RemoteAborted:
		return "remote aborted"
	case FatalError:
		return "fatal error"
	case ResponseTimeout:
		return "response timeout"
	case GeneralError:
		return "general error"
	}
	return fmt.Sprintf("status %d", uint8(s))
}
