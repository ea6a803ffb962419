//go:build linux

package mnnvltransport

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
)

// A file descriptor of device memory is handed over on an abstract unix socket
// of the provider's plugin. The consumer says the ticket of the region's
// attributes and its capability; the provider answers one byte, with the
// descriptor if that is [handed]. Both look at whose process the other is.

// ticket names a region of one instance's, and is as secret as the capability.
type ticket [16]byte

func newTicket() (t ticket) {
	_, _ = rand.Read(t[:]) // never fails
	return t
}

const (
	doorPrefix = "hawser-mnnvl-"
	// askBytes is the ticket and the capability.
	askBytes = 32
	// patience is how long either side waits for the other.
	patience = 5 * time.Second
	// maxAsking bounds the connections that are served at a time: whoever
	// opens more waits.
	maxAsking = 64
)

// The provider's answers.
const (
	handed  byte = 1
	unknown byte = 2
)

// isDoor reports whether a name can be that of a door: nobody makes this process
// connect to other sockets.
func isDoor(name string) bool {
	id, ok := strings.CutPrefix(name, doorPrefix)
	var b [16]byte
	return ok && unhex(b[:], id)
}

// door is where descriptors are handed over.
type door struct {
	name string
	ln   *net.UnixListener
	// find returns a descriptor of the region, the callee's to close, or an
	// error.
	find  func(ticket, sdk.Capability) (*os.File, error)
	room  chan struct{}
	tasks sync.WaitGroup
}

func openDoor(find func(ticket, sdk.Capability) (*os.File, error)) (*door, error) {
	id := newTicket()
	d := &door{name: doorPrefix + hex.EncodeToString(id[:]), find: find, room: make(chan struct{}, maxAsking)}
	var err error
	if d.ln, err = net.ListenUnix("unix", &net.UnixAddr{Name: "@" + d.name, Net: "unix"}); err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "mnnvl: cannot open the socket that descriptors are handed over on: %w", err)
	}
	d.tasks.Go(d.serve)
	return d, nil
}

// close stops handing over and waits for what is under way.
func (d *door) close() {
	_ = d.ln.Close()
	d.tasks.Wait()
}

func (d *door) serve() {
	for {
		d.room <- struct{}{}
		conn, err := d.ln.AcceptUnix()
		if err != nil {
			<-d.room
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors: it passes
			continue
		}
		d.tasks.Go(func() {
			defer func() { <-d.room }()
			defer conn.Close() //nolint:errcheck // nothing is left to say
			_ = conn.SetDeadline(time.Now().Add(patience))
			d.answer(conn)
		})
	}
}

// answer serves one connection. Strangers hear nothing.
func (d *door) answer(conn *net.UnixConn) {
	if sameUser(conn) != nil {
		return
	}
	var ask [askBytes]byte
	if _, err := io.ReadFull(conn, ask[:]); err != nil {
		return
	}
	f, err := d.find(ticket(ask[:16]), sdk.Capability(ask[16:]))
	if err != nil {
		_, _ = conn.Write([]byte{unknown})
		return
	}
	defer f.Close() //nolint:errcheck // a duplicate
	_, _, _ = conn.WriteMsgUnix([]byte{handed}, unix.UnixRights(int(f.Fd())), nil)
}

// sameUser fails unless the process at the other end is of this user.
func sameUser(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	if me := os.Geteuid(); int(cred.Uid) != me {
		return fmt.Errorf("the process there is of user %d, this one of user %d", cred.Uid, me)
	}
	return nil
}

// fetch asks a provider for a descriptor.
func fetch(ctx context.Context, door string, t ticket, c sdk.Capability) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	fail := func(code sdk.Code, err error) (*os.File, error) {
		return nil, sdk.Errorf(code, "mnnvl: the descriptor of region %v was not handed over: %w", c, err)
	}
	dialed, err := new(net.Dialer).DialContext(ctx, "unix", "@"+door)
	if err != nil {
		return fail(sdk.StaleCapability, fmt.Errorf("the provider's plugin is gone, or in another network namespace: %w", err))
	}
	conn := dialed.(*net.UnixConn)
	defer conn.Close() //nolint:errcheck // read to its end
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := sameUser(conn); err != nil {
		return fail(sdk.Refused, err)
	}
	if _, err := conn.Write(append(append([]byte{}, t[:]...), c[:]...)); err != nil {
		return fail(sdk.Unavailable, err)
	}
	var verdict [1]byte
	control := make([]byte, unix.CmsgSpace(4))
	n, used, _, _, err := conn.ReadMsgUnix(verdict[:], control)
	fds, bad := rights(control[:used])
	var f *os.File
	for i, fd := range fds {
		if i == 0 {
			f = os.NewFile(uintptr(fd), "device memory")
		} else {
			_ = unix.Close(fd)
		}
	}
	switch {
	case n == 1 && verdict[0] == handed && f != nil:
		return f, nil
	case f != nil:
		_ = f.Close()
	}
	switch {
	case n == 1 && verdict[0] == unknown:
		return fail(sdk.StaleCapability, errors.New("the provider does not know it any more"))
	case err == nil && bad == nil:
		err = fmt.Errorf("an answer of %d bytes without a descriptor", n)
	}
	return fail(sdk.Unavailable, errors.Join(err, bad))
}

// rights returns the descriptors that came with a message.
func rights(control []byte) (fds []int, err error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	for _, m := range messages {
		got, bad := unix.ParseUnixRights(&m)
		fds, err = append(fds, got...), errors.Join(err, bad)
	}
	return fds, err
}
