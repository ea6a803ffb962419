package link

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// The tests here run the carrier's other end in another process: this test
// binary again, with the carrier's kind and a role in the environment and the
// socket as descriptor 3.
const childEnv = "HAWSER_LINK_TEST_CHILD"

// overSocket makes a carrier of every kind over a socket.
func overSocket(kind string, conn *net.UnixConn, maxPayload int) Carrier {
	switch kind {
	case "unix":
		return NewSocket(conn, maxPayload)
	case "unix-inline":
		return newSocket(conn, maxPayload, alwaysInline)
	case "unix-flusher":
		return newSocket(conn, maxPayload, neverInline)
	case "grpc":
		return NewStream(&framed{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}, maxPayload)
	}
	gap, err := time.ParseDuration(kind)
	if err != nil {
		panic(err)
	}
	return newSocket(conn, maxPayload, gap)
}

// framed is a PacketStream over a connection.
type framed struct {
	conn net.Conn
	r    *bufio.Reader
	in   []byte
	out  []byte
}

func (f *framed) Send(p []byte) error {
	f.out = binary.LittleEndian.AppendUint32(f.out[:0], uint32(len(p)))
	f.out = append(f.out, p...)
	_, err := f.conn.Write(f.out)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return err
}

func (f *framed) Recv() ([]byte, error) {
	var size [4]byte
	_, err := io.ReadFull(f.r, size[:])
	if n := int(binary.LittleEndian.Uint32(size[:])); err == nil {
		if n > cap(f.in) {
			f.in = make([]byte, n)
		}
		f.in = f.in[:n]
		_, err = io.ReadFull(f.r, f.in)
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		err = io.EOF
	}
	return f.in, err
}

func (f *framed) Close() error { return f.conn.Close() }

// runChild answers until the link ends: everything comes back, or only what
// asks for an answer.
func runChild(what string) {
	kind, role, _ := strings.Cut(what, ",")
	conn, err := FileConn(os.NewFile(3, "link"))
	if err != nil {
		panic(err)
	}
	c := overSocket(kind, conn, testMax)
	defer c.Close()
	var in, out []Record
	for {
		if in, err = c.Recv(in[:0]); err != nil {
			if err != io.EOF {
				fmt.Fprintln(os.Stderr, "child:", err)
			}
			return
		}
		out = out[:0]
		for _, r := range in {
			switch {
			case r.Type == Ping:
				out = append(out, Record{Type: Pong, ID: r.ID})
			case role == "echo":
				r.Type = Received
				out = append(out, r)
			}
		}
		if len(out) == 0 {
			continue
		}
		if _, err := c.Send(out, Wait); err != nil {
			return
		}
	}
}

// child is a carrier to a process of its own.
type child struct {
	Carrier
	cmd *exec.Cmd
}

func startChild(t testing.TB, kind, role string) *child {
	t.Helper()
	host, other, err := Socketpair()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := FileConn(host)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+kind+","+role)
	cmd.ExtraFiles = []*os.File{other}
	cmd.Stderr = os.Stderr
	err = cmd.Start()
	other.Close()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{overSocket(kind, conn, testMax), cmd}
	t.Cleanup(c.stop)
	// It is there once it answers.
	mustSend(t, c, 0, Record{Type: Ping, ID: 1})
	recvN(t, c, 1)
	return c
}

// stop closes the link, at which the child ends.
func (c *child) stop() {
	c.Close()
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Wait()
	}
}

// senders send records of random sizes in random groups until one fails or
// each has sent n.
func (c *child) senders(count, n int, seed uint64) *sync.WaitGroup {
	var wg sync.WaitGroup
	for s := range count {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(s)))
			for i := 0; i < n; {
				recs := make([]Record, min(1+r.IntN(8), n-i))
				for k := range recs {
					recs[k] = Record{Type: Send, Endpoint: uint64(s), ID: uint64(i + k), Payload: testPayload(r, s, i+k)}
				}
				mode := Wait
				if r.IntN(2) == 0 {
					mode |= More
				}
				if _, err := c.Send(recs, mode); err != nil {
					return
				}
				i += len(recs)
			}
		})
	}
	return &wg
}

// testPayload is mostly small, sometimes big, and can be checked alone.
func testPayload(r *rand.Rand, s, i int) []byte {
	n := r.IntN(400)
	switch r.IntN(200) {
	case 0:
		n = r.IntN(testMax)
	case 1:
		n = 0
	}
	return bytes.Repeat([]byte{byte(s ^ i)}, n)
}

func checkEcho(t *testing.T, r Record, next []uint64) {
	t.Helper()
	if r.Endpoint >= uint64(len(next)) || r.Type != Received || r.ID != next[r.Endpoint] {
		t.Fatalf("received type %d id %d of sender %d, want ids %v", r.Type, r.ID, r.Endpoint, next)
	}
	next[r.Endpoint]++
	want := byte(r.Endpoint ^ r.ID)
	if bytes.Count(r.Payload, []byte{want}) != len(r.Payload) {
		t.Fatalf("payload of id %d of sender %d is damaged", r.ID, r.Endpoint)
	}
}

// TestStress checks order, content and that nothing stalls between processes.
func TestStress(t *testing.T) {
	for _, kind := range []string{"unix", "unix-flusher", "grpc"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			const count, each = 3, 4000
			c := startChild(t, kind, "echo")
			// A stall becomes an error, many times later than any end.
			defer time.AfterFunc(time.Minute, func() { c.Close() }).Stop()
			wg := c.senders(count, each, 1)
			next := make([]uint64, count)
			var in []Record
			for got := 0; got < count*each; got += len(in) {
				var err error
				if in, err = c.Recv(in[:0]); err != nil {
					t.Fatalf("after %v records: %v", next, err)
				}
				for _, r := range in {
					checkEcho(t, r, next)
				}
			}
			wg.Wait()
		})
	}
}

// TestKill kills the child at a random point: what came is a prefix, then the
// end, and everything that blocked is free.
func TestKill(t *testing.T) {
	for _, kind := range []string{"unix", "grpc"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			for round := range uint64(5) {
				const count = 3
				c := startChild(t, kind, "echo")
				defer time.AfterFunc(time.Minute, func() { c.Close() }).Stop()
				at := rand.IntN(3000)
				wg := c.senders(count, 1<<30, round)
				next := make([]uint64, count)
				var in []Record
				var err error
				got := 0
				for killed := false; err == nil; {
					if !killed && got >= at {
						if err := c.cmd.Process.Kill(); err != nil {
							t.Fatal(err)
						}
						killed = true
					}
					in, err = c.Recv(in[:0])
					got += len(in)
					for _, r := range in {
						checkEcho(t, r, next)
					}
				}
				if err != io.EOF {
					t.Errorf("killed after %d records: %v, want EOF", at, err)
				}
				wg.Wait()
				if _, err := c.Send([]Record{{Type: Ping}}, Wait); err != ErrClosed {
					t.Errorf("Send: %v, want ErrClosed", err)
				}
				c.stop()
				if ws := c.cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
					t.Errorf("the child was not killed: %v", c.cmd.ProcessState)
				}
			}
		})
	}
}
