package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// inlineGap is how long the link must have been quiet for a sender to write
// itself: longer than what somebody does who sends back to back, shorter than
// the time in which the fastest peer answers, and about what a write costs, so
// that inline writes take half of a sender's time at most. In BenchmarkGap 1us
// is too short for a sender with 1us of work for each record, and from 4us on
// a growing part of closed loops goes through the flusher.
const inlineGap = 2 * time.Microsecond

// socket is carrier L1: one end of a connected unix stream socket.
type socket struct {
	desc   *descriptor
	closed atomic.Bool
	out    queue
	// drained is how many bytes were written after waiting for the other end
	// to read.
	drained atomic.Uint64

	// The writer's arguments and results: whoever is busy in out owns them. A
	// new closure for each write would be an allocation for each.
	snd struct {
		fn    func(set uintptr) bool
		block bool
		waits bool // for the other end to read
		msg   message
	}
	cause atomic.Pointer[error] // why writing failed, if not for the peer's end

	readMu sync.Mutex // held by Recv, and by Close once nothing can block
	in     assembler
	rcv    struct {
		fn  func(set uintptr) bool
		oob []byte
		msg message
	}
}

// NewSocket makes carrier L1 of a connected unix stream socket, which the
// carrier owns from now on. Payloads over maxPayload are refused both ways.
func NewSocket(conn *net.UnixConn, maxPayload int) Carrier {
	return newSocket(conn, maxPayload, inlineGap)
}

func newSocket(conn *net.UnixConn, maxPayload int, gap time.Duration) Carrier {
	desc, err := newDescriptor(conn)
	if err != nil {
		return failed{fmt.Errorf("link: %w", err)}
	}
	s := &socket{desc: desc}
	s.snd.fn = s.sendmsg
	s.rcv.fn = s.recvmsg
	s.rcv.oob = make([]byte, unix.CmsgSpace(MaxFiles*4))
	in, out := &s.in, &s.out
	in.max, in.fill, in.closeFD, in.newFile = clampPayload(maxPayload), s.fill, closeFD, newFile
	out.max, out.limit, out.gap = in.max, queueLimit, gap
	out.write, out.try, out.dup, out.closeFD = s.write, s.try, dupFile, closeFD
	s.out.run()
	return s
}

func (s *socket) Send(recs []Record, mode Mode) (int, error) { return s.out.send(recs, mode) }

func (s *socket) CarriesFiles() bool { return true }

func (s *socket) Moved() uint64 { return s.in.moved.Load() + s.drained.Load() }

func (s *socket) Recv(dst []Record) ([]Record, error) {
	s.readMu.Lock()
	defer s.readMu.Unlock()
	if s.closed.Load() {
		return dst, ErrClosed
	}
	recs, err := s.in.next(dst)
	if err == nil {
		return recs, nil
	}
	s.out.end()
	s.desc.close()
	switch cause := s.cause.Load(); {
	case s.closed.Load():
		err = ErrClosed
	case cause != nil && err == io.EOF:
		err = *cause
	}
	return recs, err
}

func (s *socket) Close() error {
	s.closed.Store(true)
	s.out.end()
	s.desc.close() // unblocks the flusher and Recv
	<-s.out.done
	s.readMu.Lock()
	defer s.readMu.Unlock()
	s.in.fail(ErrClosed)
	return nil
}

// write and try are the queue's two ways to write.
func (s *socket) write(b []byte, fds []int) (int, error) { return s.put(b, fds, true) }
func (s *socket) try(b []byte, fds []int) (int, error)   { return s.put(b, fds, false) }

func (s *socket) put(b []byte, fds []int, block bool) (int, error) {
	o := &s.snd
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	o.block, o.waits = block, false
	o.msg.set(b, oob)
	// The set for writing becomes readable when the socket is writable.
	err := s.desc.out.raw.Read(o.fn)
	o.msg.set(nil, nil)
	if err == nil {
		err = o.msg.err
	}
	if err == nil {
		if o.waits {
			s.drained.Add(uint64(o.msg.n))
		}
		return o.msg.n, nil
	}
	if !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) {
		cause := fmt.Errorf("link: write: %w", err)
		s.cause.Store(&cause)
	}
	// Recv reads what has come so far, and then sees the end.
	s.desc.closeRead()
	return 0, err
}

// sendmsg writes if that is possible now. Otherwise, if it may block, it asks
// to be called again when it is.
func (s *socket) sendmsg(set uintptr) bool {
	m := &s.snd.msg
	if blocked := s.desc.call(m, unix.SYS_SENDMSG, unix.MSG_NOSIGNAL); !blocked || !s.snd.block {
		return true
	}
	s.snd.waits = true
	m.err = s.desc.armWrite(set)
	return m.err != nil
}

// fill is the assembler's way to read.
func (s *socket) fill(p []byte) (int, []int, error) {
	m := &s.rcv.msg
	m.set(p, s.rcv.oob)
	err := s.desc.in.raw.Read(s.rcv.fn)
	oob, flags := s.rcv.oob[:m.hdr.Controllen], int(m.hdr.Flags)
	m.set(nil, nil)
	if err == nil {
		err = m.err
	}
	switch {
	case errors.Is(err, unix.ECONNRESET): // it left without reading everything
		return 0, nil, io.EOF
	case err != nil:
		return 0, nil, fmt.Errorf("link: read: %w", err)
	}
	var fds []int
	if len(oob) > 0 || flags&unix.MSG_CTRUNC != 0 {
		fds, err = rights(oob, flags)
	}
	if err == nil && m.n == 0 {
		err = io.EOF
	}
	return m.n, fds, err
}

func (s *socket) recvmsg(uintptr) bool {
	return !s.desc.call(&s.rcv.msg, unix.SYS_RECVMSG, unix.MSG_CMSG_CLOEXEC)
}

// rights returns the descriptors in a control message, which are in this
// process' table already, also if there is an error.
func rights(oob []byte, flags int) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		err = fmt.Errorf("%w: control message: %w", ErrViolation, err)
	}
	for i := range msgs {
		got, perr := unix.ParseUnixRights(&msgs[i])
		if perr != nil {
			err = fmt.Errorf("%w: unexpected control message", ErrViolation)
			continue
		}
		fds = append(fds, got...)
	}
	if flags&unix.MSG_CTRUNC != 0 {
		err = fmt.Errorf("%w: file descriptors were cut off: over %d, or no room in this process", ErrViolation, MaxFiles)
	}
	return fds, err
}

// dupFile duplicates a file's descriptor. File.Fd would change its mode.
func dupFile(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	dup := -1
	if cerr := raw.Control(func(fd uintptr) {
		dup, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	}); cerr != nil {
		return -1, cerr
	}
	return dup, err
}

func closeFD(fd int) { _ = unix.Close(fd) }

func newFile(fd int) *os.File { return os.NewFile(uintptr(fd), "link") }

// Socketpair makes a connected pair of unix stream sockets. One end is for
// FileConn, the other for a child process (exec.Cmd.ExtraFiles); neither is
// inherited otherwise.
func Socketpair() (host, child *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("link: socketpair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "link-host"), os.NewFile(uintptr(fds[1]), "link-child"), nil
}
