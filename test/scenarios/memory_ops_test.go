//go:build linux

package scenarios

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// frozen stops a provider and its plugins, as a machine that hangs does, and
// returns what continues them.
func frozen(t *testing.T, c *child, plugins []int) (thaw func()) {
	t.Helper()
	var all []held
	for _, pid := range append([]int{c.Process.Pid}, plugins...) {
		h := hold(t, pid)
		t.Cleanup(h.release)
		all = append(all, h)
	}
	for _, h := range all {
		h.stop(t)
	}
	return func() {
		for i := len(all) - 1; i >= 0; i-- {
			all[i].signal(unix.SIGCONT)
		}
	}
}

const (
	frozenRPC, frozenSlow = 3000, 10_000 // milliseconds; the other for slow machines
	// frozenFirst is what the first transfer to a frozen peer may take: its
	// endpoint's stall, of 5 s, and one timeout of the control plane, and as
	// much again for a machine that is busy.
	frozenFirst = 16 * time.Second
	// frozenNext is far above what the next ones take, a few milliseconds, and
	// far below a timeout.
	frozenNext = time.Second
	// largeLimit is what a large transfer may take.
	largeLimit = 60 * time.Second
)

// Scenario 29: a frozen peer costs the first transfer one timeout, and the next
// ones nothing; when it runs again, it is of use again.
func TestScenario29AFrozenPeerCostsATransferOneTimeout(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		p, up := c.startProvider(t, "provider", "127.0.0.1:0")
		now := p.publish(t, "publish", 1)
		cfg := c.config(t, "consumer")
		call := min(frozenRPC*int(slow), frozenSlow)
		cfg.RPC.RequestTimeoutMS, cfg.RPC.BootstrapTimeoutMS, cfg.RPC.ConnectTimeoutMS = call, call, call
		r := c.reads(t, c.open(t, cfg), up.Address)
		// What a GPU has mapped it copies without the peer: there the peer
		// freezes before.
		if c.remote == 0 {
			if _, err := r.read(t, engine.Capability{}); err != nil {
				t.Fatal(err)
			}
		}
		thaw := frozen(t, p, now.Plugins)
		defer thaw()
		try := func() (time.Duration, error) {
			began := time.Now()
			x, err := r.Submit(context.Background(), []engine.Op{whole(engine.Read, r.local, r.segment, placeAddress)}, engine.SubmitOptions{})
			if err == nil {
				err = x.Wait(context.Background())
			}
			return time.Since(began), err
		}
		// A real RDMA device answers reads for processes that are frozen.
		answered := 0
		byDevice := func(err error) bool {
			if err == nil && c.name == "rdma" && onHardware() {
				answered++
				return true
			}
			return false
		}
		took, err := try()
		t.Logf("the first took %v: %v", took.Round(time.Millisecond), err)
		if !byDevice(err) && !errors.Is(err, engine.Unavailable) || took > frozenFirst*slow {
			t.Errorf("the first took %v: %v", took, err)
		}
		for range 10 {
			took, err := try()
			if !byDevice(err) && (!errors.Is(err, engine.Unavailable) || !errors.Is(err, engine.NotSent)) || took > frozenNext*slow {
				t.Errorf("a later one took %v: %v", took, err)
			}
		}
		if answered > 0 {
			t.Logf("%d reads were answered by the frozen peer's device", answered)
		} else {
			until(t, "the mark to be counted", func() bool { return r.Stats().Marks > 0 })
		}
		thaw()
		until(t, "transfers to the peer that runs again", func() bool { _, err := try(); return err == nil })
		p.leave(t)
	})
}

// Scenario 42: of two targets one is gone. The other one has its data and one
// notification, and the caller learns of the failure.
func TestScenario42OneOfTwoTargetsIsGone(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		p, up := c.startProvider(t, "gone", "127.0.0.1:0")
		now := p.publish(t, "publish", 1)
		here, there := c.open(t, c.config(t, "here")), c.open(t, c.config(t, "there"))
		local, remote := c.mine(t, here, contentBytes, engine.RegionOptions{}), c.theirs(t, there, contentBytes, engine.RegionOptions{})
		local.set(t, 0, filled(contentBytes, 2))
		segment, gone := here.segment(t, there.address()), here.segment(t, up.Address)
		hold(t, p.Process.Pid).kill(t)
		_ = p.Wait()
		n := message("data", 0)
		x, err := here.Submit(briefly(t), []engine.Op{
			whole(engine.Write, local, gone, now.Address), whole(engine.Write, local, segment, remote.Address()),
		}, engine.SubmitOptions{Notification: &n})
		if err != nil {
			t.Fatal(err)
		}
		err = x.Wait(briefly(t))
		var of *engine.TransferError
		if !errors.As(err, &of) || of.Failed != 1 || of.Errors[0].Index != 0 || of.Errors[0].Peer != up.Address {
			t.Errorf("got %v", err)
		}
		if results := x.Results(); results[0] == nil || results[1] != nil {
			t.Errorf("results %v", results)
		}
		if b := remote.bytes(t); !bytes.Equal(b, filled(contentBytes, 2)) {
			t.Errorf("at the other one: %s", contents(b))
		}
		there.inbox.expect(t, map[string]int{"data": 1})
	})
}

// Scenario 44: what was registered as read-only can be read, and not written.
func TestScenario44AReadOnlyRegionIsNotWritten(t *testing.T) {
	ofEach(t, slices.Concat(hostCarriers, gpuCarriers), func(t *testing.T, c carrier) {
		here, there := c.open(t, c.config(t, "here")), c.open(t, c.config(t, "there"))
		local := c.mine(t, here, contentBytes, engine.RegionOptions{})
		remote := c.theirs(t, there, contentBytes, engine.RegionOptions{ReadOnly: true})
		want := filled(contentBytes, 1)
		remote.set(t, 0, want)
		segment := here.segment(t, there.address())
		local.set(t, 0, filled(contentBytes, 2))
		before := packets(t)
		if err := here.submit(t, whole(engine.Write, local, segment, remote.Address())).Wait(briefly(t)); !errors.Is(err, engine.Refused) {
			t.Errorf("written: %v", err)
		}
		if err := here.submit(t, whole(engine.Read, local, segment, remote.Address())).Wait(briefly(t)); err != nil {
			t.Error(err)
		}
		if c.name == "rdma" && onHardware() && packets(t) == before {
			t.Log("the region was read another way: this kernel's devices register only what can be written to (Linux before 6.2)")
		}
		if !bytes.Equal(remote.bytes(t), want) || !bytes.Equal(local.bytes(t), want) {
			t.Errorf("there: %s; here: %s", contents(remote.bytes(t)), contents(local.bytes(t)))
		}
		// A region of one's own, likewise.
		mine := c.mine(t, here, contentBytes, engine.RegionOptions{ReadOnly: true})
		if _, err := here.Submit(briefly(t), []engine.Op{whole(engine.Read, mine, segment, remote.Address())}, engine.SubmitOptions{}); !errors.Is(err, engine.Refused) {
			t.Errorf("read into a read-only region: %v", err)
		}
	})
}

// anonymous is how much of a process's memory is its own, and no region's.
func anonymous(pid int) int {
	kilobytes, _ := strconv.Atoi(strings.TrimSuffix(field(pid, "RssAnon:"), " kB"))
	return kilobytes << 10
}

// largeMemory is by how much a plugin may grow over a large transfer.
const largeMemory = 48 << 20

// Scenario 46: a large transfer tells its progress, can be cancelled, and takes
// no memory but its regions'.
func TestScenario46ALargeTransfer(t *testing.T) {
	over(t, hostCarriers, func(t *testing.T, c carrier) {
		const count = 8 // ops on the same memory: 1 GiB
		size := 128 << 20
		if slow > 1 {
			size /= 8 // an emulated device moves 5 MiB a second
		}
		here, there := c.open(t, c.config(t, "here")), c.open(t, c.config(t, "there"))
		local, remote := c.mine(t, here, size, engine.RegionOptions{}), c.theirs(t, there, size, engine.RegionOptions{})
		const page = 4 << 10
		stamp := func(b []byte, seed uint64) { // some words, since all of them take long
			r := rand.New(rand.NewPCG(seed, 0))
			for at := 0; at < size; at += page {
				fill(b[at:at+8], r.Uint64N(1<<31))
			}
		}
		stamp(local.Bytes(), 1)
		segment := here.segment(t, there.address())
		plugins := append(pluginPIDs(here.Engine), pluginPIDs(there.Engine)...)
		before := map[int]int{}
		for _, pid := range plugins {
			before[pid] = anonymous(pid)
		}
		submit := func() *engine.Transfer {
			var ops []engine.Op
			for range count {
				ops = append(ops, whole(engine.Write, local, segment, remote.Address()))
			}
			ctx, cancel := context.WithTimeout(t.Context(), min(largeLimit*slow, 10*time.Minute))
			t.Cleanup(cancel)
			x, err := here.Submit(ctx, ops, engine.SubmitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return x
		}
		sent := packets(t)
		x := submit()
		steps, last, most := 0, uint64(0), 0
		for !isDone(x) {
			p := x.Progress()
			// What an endpoint has moved is moved again if it ends before the flush,
			// as an emulated one may for want of an answer in time.
			back := p.Bytes < last && (slow == 1 || here.Stats().Fences == 0)
			if back || p.Bytes > p.Total || p.Total != uint64(size*count) {
				t.Fatalf("progress %+v after %d bytes", p, last)
			}
			if p.Bytes > last && p.Bytes < p.Total {
				steps++
			}
			last = p.Bytes
			for _, pid := range plugins {
				most = max(most, anonymous(pid)-before[pid])
			}
			time.Sleep(pollEvery)
		}
		if err := x.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
		if n := packets(t) - sent; c.name == "rdma" && onHardware() && n < size*count/packetBytes {
			t.Errorf("the RDMA devices sent %d packets: most of it went another way", n)
		}
		if p := x.Progress(); p.Bytes != p.Total || p.Done != count {
			t.Errorf("in the end %+v", p)
		}
		if steps < 3 || most > largeMemory {
			t.Errorf("%d steps of progress; a plugin grew by %d MiB", steps, most>>20)
		}
		if !bytes.Equal(local.Bytes(), remote.Bytes()) {
			t.Error("other bytes arrived")
		}
		t.Logf("%d MiB: %d steps of progress, a plugin grew by %d MiB", size*count>>20, steps, most>>20)

		stamp(local.Bytes(), 2)
		x = submit()
		until(t, "some of it to arrive", func() bool { return x.Progress().Bytes > 0 })
		began := time.Now()
		x.Cancel()
		err := x.Wait(briefly(t))
		if p := x.Progress(); !errors.Is(err, context.Canceled) || p.Bytes == p.Total {
			t.Errorf("cancelled too late: %v, %+v", err, p)
		}
		stamp(local.Bytes(), 3)
		stamp(remote.Bytes(), 4) // it is the owner's again
		t.Logf("cancelled after %v with %d MiB there", lap(began), x.Progress().Bytes>>20)
		came := bytes.Clone(remote.Bytes()[:size/2])
		if err := here.submit(t, engine.Op{Kind: engine.Write, Local: local.Region, Segment: segment, LocalOffset: uint64(size - page), Address: remote.Address() + uint64(size-page), Length: page}).Wait(briefly(t)); err != nil {
			t.Errorf("after the cancelled one: %v", err)
		}
		if !bytes.Equal(came, remote.Bytes()[:size/2]) {
			t.Error("bytes of the cancelled op came after its end")
		}
	})
}

// Scenario 12, of transfers: to oneself, under TLS and without. No transport has
// a part in it, and Close ends it as it does with any consumer.
func TestScenario12TransfersToOneself(t *testing.T) {
	leaveNothing(t)
	secure, _ := secured(t, "secure", sdktest.NewAuthority(t, "ca").Issue("self", nil))
	for name, cfg := range map[string]engine.Config{"plain": config("plain"), "secure": secure} {
		t.Run(name, func(t *testing.T) {
			n := open(t, cfg)
			const size = 32 << 20
			region := func() *block { return carrier{}.mine(t, n, size, engine.RegionOptions{}) }
			from, to, back := region(), region(), region()
			g := n.segment(t, n.address())
			fill(from.Bytes(), 1)
			data := message("data", 0)
			x, err := n.Submit(briefly(t), []engine.Op{whole(engine.Write, from, g, to.Address())}, engine.SubmitOptions{Notification: &data})
			if err != nil {
				t.Fatal(err)
			}
			n.inbox.expect(t, map[string]int{"data": 1})
			if !bytes.Equal(to.Bytes(), from.Bytes()) {
				t.Errorf("when the notification came: %s", contents(to.Bytes()))
			}
			if err := x.Wait(briefly(t)); err != nil {
				t.Error(err)
			}
			if err := n.submit(t, whole(engine.Read, back, g, to.Address())).Wait(briefly(t)); err != nil || !bytes.Equal(back.Bytes(), from.Bytes()) {
				t.Errorf("read: %v, %s", err, contents(back.Bytes()))
			}
			if s := n.Stats(); s.BytesMoved != 2*size || s.Mappings != 0 || s.Connects != 0 {
				t.Errorf("%+v", s)
			}
			if err := to.Close(briefly(t)); err != nil {
				t.Error(err)
			}
			if err := n.submit(t, whole(engine.Read, back, g, to.Address())).Wait(briefly(t)); !errors.Is(err, engine.StaleCapability) {
				t.Errorf("of a closed region: %v", err)
			}
		})
	}
}
