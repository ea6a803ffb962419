package link

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// probe is a pipe whose write ends go over the link: its reader sees EOF once
// every copy is closed, so that a leaked descriptor is a hang, not a guess.
type probe struct {
	r, w *os.File
}

func newProbe(t *testing.T) probe {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return probe{r, w}
}

// closed returns once no copy is open, with what was written.
func (p probe) closed(t *testing.T) string {
	t.Helper()
	p.w.Close()
	b, err := io.ReadAll(p.r)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func eachSocket(t *testing.T, f func(t *testing.T, p pair)) {
	each(t, func(t *testing.T, p pair) {
		if p.a.CarriesFiles() {
			f(t, p)
		}
	})
}

func TestFiles(t *testing.T) {
	eachSocket(t, func(t *testing.T, p pair) {
		var probes []probe
		var sent []Record
		for i, n := range []int{1, 0, MaxFiles, 2, 1, 1} {
			r := Record{Type: Files, ID: uint64(i), Payload: pattern(1, i*50000)}
			for range n {
				x := newProbe(t)
				probes = append(probes, x)
				r.Files = append(r.Files, x.w)
			}
			sent = append(sent, Record{Type: Send, ID: 99}, r)
		}
		sent = append(sent, Record{Type: Ping})
		var wg sync.WaitGroup
		wg.Go(func() { mustSend(t, p.a, Wait, sent...) })
		var number int
		for i, r := range recvN(t, p.b, len(sent)) {
			if r.Type != sent[i].Type || len(r.Files) != len(sent[i].Files) || !bytes.Equal(r.Payload, sent[i].Payload) {
				t.Fatalf("record %d: type %d, %d files, %d bytes", i, r.Type, len(r.Files), len(r.Payload))
			}
			for _, f := range r.Files {
				fmt.Fprint(f, "probe ", number)
				number++
				if raw, err := f.SyscallConn(); err != nil {
					t.Error(err)
				} else {
					_ = raw.Control(func(fd uintptr) {
						if flags, _ := unix.FcntlInt(fd, unix.F_GETFD, 0); flags&unix.FD_CLOEXEC == 0 {
							t.Error("a received descriptor would be inherited")
						}
					})
				}
				f.Close()
			}
		}
		wg.Wait()
		for i, x := range probes {
			if got, want := x.closed(t), fmt.Sprint("probe ", i); got != want {
				t.Errorf("probe %d got %q", i, got)
			}
		}
	})
}

// Files that never left, or never got a record, are closed.
func TestFilesAreReleased(t *testing.T) {
	eachSocket(t, func(t *testing.T, p pair) {
		fill(t, p.a, 64<<10)
		x := newProbe(t)
		// Behind megabytes that nobody reads; small enough to have room.
		mustSend(t, p.a, 0, Record{Type: Files, Files: []*os.File{x.w}})
		p.a.Close()
		x.closed(t)
	})
}

// rawSend sends bytes with descriptors.
func rawSend(t *testing.T, c *net.UnixConn, b []byte, fds ...int) {
	t.Helper()
	if n, _, err := c.WriteMsgUnix(b, unix.UnixRights(fds...), nil); n != len(b) || err != nil {
		t.Fatalf("sendmsg: %d, %v", n, err)
	}
}

func TestFilesViolations(t *testing.T) {
	files := func(n int, payload string) []byte {
		return appendRecord(nil, &Record{Type: Files, Files: make([]*os.File, n), Payload: []byte(payload)})
	}
	ping := appendRecord(nil, &Record{Type: Ping})
	for name, c := range map[string]struct {
		send func(t *testing.T, c *net.UnixConn, fd int)
		text string
	}{
		"on a ping": {func(t *testing.T, c *net.UnixConn, fd int) { rawSend(t, c, ping, fd) }, "without a record"},
		"one too many": {func(t *testing.T, c *net.UnixConn, fd int) { rawSend(t, c, files(1, ""), fd, fd) },
			"1 files announced, 2 came"},
		"one too few": {func(t *testing.T, c *net.UnixConn, fd int) { rawSend(t, c, files(3, ""), fd, fd) },
			"3 files announced, 2 came"},
		"cut off": {func(t *testing.T, c *net.UnixConn, fd int) {
			rawSend(t, c, files(MaxFiles, ""), bytesOf(fd, MaxFiles+8)...)
		}, "cut off"},
		"inside a record": {func(t *testing.T, c *net.UnixConn, fd int) {
			b := files(1, "hello")
			rawSend(t, c, b[:26], fd)
			rawSend(t, c, b[26:28], fd)
			rawSend(t, c, b[28:], fd)
		}, "without a record"},
		"two records, one set": {func(t *testing.T, c *net.UnixConn, fd int) {
			rawSend(t, c, append(files(1, ""), files(1, "")...), fd)
		}, "none came"},
		"then garbage": {func(t *testing.T, c *net.UnixConn, fd int) {
			rawSend(t, c, append(files(1, "")[:HeaderSize-4], 0, 0, 0, 0, 9, 9, 9, 9, 0xff, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9), fd)
		}, "unknown"},
		"held at the end": {func(t *testing.T, c *net.UnixConn, fd int) { rawSend(t, c, files(1, "hello")[:26], fd) }, "EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := conns(t)
			x := newProbe(t)
			raw, err := x.w.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			_ = raw.Control(func(fd uintptr) { c.send(t, a, int(fd)) })
			a.Close()
			car := NewSocket(b, testMax)
			defer car.Close()
			err = nil
			var recs []Record
			for err == nil {
				recs, err = car.Recv(recs[:0])
				for _, r := range recs {
					for _, f := range r.Files {
						f.Close()
					}
				}
			}
			if c.text != "EOF" && !errors.Is(err, ErrViolation) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Recv: %v, want %q", err, c.text)
			}
			x.closed(t) // before Close
		})
	}
}

func bytesOf(fd, n int) []int {
	fds := make([]int, n)
	for i := range fds {
		fds[i] = fd
	}
	return fds
}

// A set without its record's end is released by Close alone.
func TestFilesHeldAtClose(t *testing.T) {
	a, b := conns(t)
	defer a.Close()
	x := newProbe(t)
	c := NewSocket(b, testMax)
	rec := appendRecord(nil, &Record{Type: Files, Files: make([]*os.File, 1), Payload: []byte("hello")})
	raw, err := x.w.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	_ = raw.Control(func(fd uintptr) {
		rawSend(t, a, append(appendRecord(nil, &Record{Type: Ping}), rec[:26]...), int(fd))
	})
	// The set came with the ping's bytes, and belongs to what follows.
	recvN(t, c, 1)
	c.Close()
	x.closed(t)
}

func TestFileConn(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FileConn(f); err == nil {
		t.Error("a regular file became a connection")
	}
	if err := f.Close(); err == nil {
		t.Error("FileConn left the file open")
	}
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	if _, err := FileConn(os.NewFile(uintptr(fds[0]), "")); err == nil {
		t.Error("a packet socket became a stream")
	}
}

func TestSocketOfAClosedConn(t *testing.T) {
	a, b := conns(t)
	b.Close()
	a.Close()
	c := NewSocket(a, testMax)
	if _, err := c.Recv(nil); err == nil {
		t.Error("Recv works")
	}
	c.Close()
	if _, err := c.Send([]Record{{Type: Ping}}, Wait); err == nil {
		t.Error("Send works")
	}
}
