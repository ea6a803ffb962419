//go:build linux

package cudatest

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// asPeer, in the environment of a test binary, makes it the other process.
const asPeer = "CUDATEST_PEER"

// IsPeer reports whether this process was started as a peer: TestMain then
// calls [Serve] instead of running the tests.
func IsPeer() bool { return os.Getenv(asPeer) != "" }

// Peer is another process with the same driver.
type Peer struct {
	t    *testing.T
	conn int
	cmd  *exec.Cmd
}

// StartPeer starts this test binary as a peer, with more environment.
func StartPeer(t *testing.T, env ...string) *Peer {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(pair[1]), "peer")
	defer theirs.Close()
	cmd := exec.Command(os.Args[0])
	// The race detector sleeps a second before each exit if it is not told.
	cmd.Env = append(append(os.Environ(), asPeer+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")), env...)
	cmd.Stderr, cmd.ExtraFiles = os.Stderr, []*os.File{theirs}
	if err := cmd.Start(); err != nil {
		unix.Close(pair[0])
		t.Fatal(err)
	}
	p := &Peer{t: t, conn: pair[0], cmd: cmd}
	t.Cleanup(p.stop)
	return p
}

// stop ends the peer, which has to end well unless it was killed.
func (p *Peer) stop() {
	if p.cmd.ProcessState != nil {
		return
	}
	unix.Close(p.conn)
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("the peer ended with %v", err)
	}
}

// Kill kills the peer and returns once it has gone.
func (p *Peer) Kill() {
	if err := p.cmd.Process.Kill(); err != nil {
		p.t.Error(err)
	}
	_ = p.cmd.Wait() // says that it was killed
	unix.Close(p.conn)
}

// request is an order to a peer.
type request struct {
	Op          string
	ID          int // of the peer's memory, or of a hazard
	Ordinal     int
	Kind        cuda.Kind
	Size        uint64
	Value       byte
	Nanoseconds uint64
}

// answer has what the peer did. A descriptor comes beside it.
type answer struct {
	Error  string
	ID     int
	Base   cuda.Ptr
	Shared cuda.Shared
	Event  cuda.EventHandle
	Bytes  []byte
	// Refusal is what the driver said to a hazard.
	Refusal string
}

const largest = 1 << 16

// ask gives an order.
func (p *Peer) ask(r request) (answer, error) {
	var a answer
	b, err := json.Marshal(r)
	if err != nil {
		return a, err
	}
	if err := unix.Sendmsg(p.conn, b, nil, nil, 0); err != nil {
		return a, err
	}
	fd, err := receive(p.conn, &a)
	if err != nil {
		return a, err
	}
	if a.Shared.Kind == cuda.PosixFD {
		a.Shared.FD = fd
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

// do is ask that must succeed.
func (p *Peer) do(r request) answer {
	p.t.Helper()
	a, err := p.ask(r)
	if err != nil {
		p.t.Fatalf("peer: %s: %v", r.Op, err)
	}
	return a
}

// receive reads one message and its descriptor, -1 if there is none.
func receive(conn int, into any) (int, error) {
	b, oob := make([]byte, largest), make([]byte, unix.CmsgSpace(4))
	n, m, _, _, err := unix.Recvmsg(conn, b, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	if n == 0 {
		return -1, errors.New("the other process has gone")
	}
	fd := -1
	if m > 0 {
		messages, err := unix.ParseSocketControlMessage(oob[:m])
		if err != nil {
			return -1, err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return -1, err
		}
		fd = fds[0]
	}
	return fd, json.Unmarshal(b[:n], into)
}

// server is a peer's side.
type server struct {
	driver cuda.Driver
	opened map[int]cuda.Device
	stream map[int]cuda.Stream
	mems   map[int]*provided
	events map[int]ownEvent
}

type provided struct {
	*cuda.Allocation
	ordinal int
}

type ownEvent struct {
	event   cuda.Event
	ordinal int
}

// Serve does what the process at the other end of descriptor 3 orders, until
// that has gone. It then gives everything back.
func Serve(d cuda.Driver) error {
	const conn = 3
	unix.CloseOnExec(conn)
	s := &server{d, map[int]cuda.Device{}, map[int]cuda.Stream{}, map[int]*provided{}, map[int]ownEvent{}}
	for {
		var r request
		if _, err := receive(conn, &r); err != nil {
			return s.close()
		}
		var rights []byte
		a, err := s.serve(r)
		if err != nil {
			a.Error = err.Error()
		}
		if a.Shared.Kind == cuda.PosixFD {
			rights = unix.UnixRights(a.Shared.FD)
		}
		b, err := json.Marshal(a)
		if err == nil {
			err = unix.Sendmsg(conn, b, rights, nil, 0)
		}
		if rights != nil {
			unix.Close(a.Shared.FD)
		}
		if err != nil {
			return errors.Join(err, s.close())
		}
	}
}

func (s *server) serve(r request) (a answer, err error) {
	switch r.Op {
	case "provide":
		return s.provide(r)
	case "risk":
		return s.risk(r)
	}
	mem := s.mems[r.ID]
	if mem == nil {
		return a, fmt.Errorf("%s: no memory %d", r.Op, r.ID)
	}
	err = s.opened[mem.ordinal].Do(func(c cuda.Context) error {
		stream := s.stream[mem.ordinal]
		switch r.Op {
		case "free":
			delete(s.mems, r.ID)
			return mem.Close(c)
		case "fill":
			return fill(c, stream, mem.Base, mem.Size, r.Value)
		case "read":
			var err error
			a.Bytes, err = load(c, stream, mem.Base, min(mem.Size, 4096))
			return err
		case "produce":
			e, err := c.CreateEvent(true)
			if err != nil {
				return err
			}
			s.events[r.ID] = ownEvent{e, mem.ordinal}
			if err := errors.Join(
				c.(cuda.Busier).Busy(r.Nanoseconds, stream),
				c.Set(mem.Base, r.Value, mem.Size, stream),
				c.Record(e, stream)); err != nil {
				return err
			}
			a.Event, err = c.ExportEvent(e)
			return err
		case "produced":
			e := s.events[r.ID]
			delete(s.events, r.ID)
			return errors.Join(c.SyncStream(stream), c.DestroyEvent(e.event))
		}
		return fmt.Errorf("unknown order %q", r.Op)
	})
	return a, err
}

// open opens a device, with a stream, once.
func (s *server) open(ordinal int) (cuda.Device, error) {
	if dev := s.opened[ordinal]; dev != nil {
		return dev, nil
	}
	dev, err := s.driver.Open(ordinal)
	if err != nil {
		return nil, err
	}
	s.opened[ordinal] = dev
	return dev, dev.Do(func(c cuda.Context) (err error) {
		s.stream[ordinal], err = c.CreateStream()
		return err
	})
}

func (s *server) risk(r request) (a answer, err error) {
	dev, err := s.open(r.Ordinal)
	if err != nil {
		return a, err
	}
	err = dev.Do(func(c cuda.Context) error {
		refusal, err := risk(c, s.stream[r.Ordinal], r.ID)
		if refusal != nil {
			a.Refusal = refusal.Error()
		}
		return err
	})
	return a, err
}

// provide allocates, fills and exports memory.
func (s *server) provide(r request) (a answer, err error) {
	dev, err := s.open(r.Ordinal)
	if err != nil {
		return a, err
	}
	err = dev.Do(func(c cuda.Context) error {
		mem, err := cuda.Allocate(c, r.Size, r.Kind)
		if err != nil {
			return err
		}
		a.ID, a.Base = len(s.mems)+1, mem.Base
		for s.mems[a.ID] != nil {
			a.ID++
		}
		s.mems[a.ID] = &provided{mem, r.Ordinal}
		if err := fill(c, s.stream[r.Ordinal], mem.Base, mem.Size, r.Value); err != nil {
			return err
		}
		e, err := cuda.Export(c, mem.Base, mem.Size, r.Kind)
		if err != nil {
			return err
		}
		a.Shared = e.Shared
		if r.Kind == cuda.PosixFD {
			a.Shared.FD, err = unix.FcntlInt(uintptr(e.FD), unix.F_DUPFD_CLOEXEC, 3)
		}
		return errors.Join(err, e.Close(c))
	})
	return a, err
}

func (s *server) close() (err error) {
	for id := range s.mems {
		_, freed := s.serve(request{Op: "free", ID: id})
		err = errors.Join(err, freed)
	}
	for i, dev := range s.opened {
		err = errors.Join(err, dev.Do(func(c cuda.Context) (err error) {
			for _, e := range s.events {
				if e.ordinal == i {
					err = errors.Join(err, c.DestroyEvent(e.event))
				}
			}
			return errors.Join(err, c.SyncStream(s.stream[i]), c.DestroyStream(s.stream[i]))
		}), dev.Close())
	}
	return err
}
