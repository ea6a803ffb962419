//go:build linux

package scenarios

import (
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
)

// longVariable makes these scenarios as long as they are specified: 1000
// registrations and 50 restarts over each transport, 100 kills, 10,000
// notifications, 1 GiB. Without it they are a fraction of that.
const longVariable = "HAWSER_LONG"

func long() bool { return os.Getenv(longVariable) != "" }

// times is how often something is done: in short, and in the long form.
func times(short, all int) int {
	if long() {
		return all
	}
	return short
}

// reading is a consumer's, of the one region of a provider's.
type reading struct {
	*node
	segment *engine.Segment
	local   *block
}

func (c carrier) reading(t *testing.T, address string) *reading {
	return c.reads(t, c.open(t, c.config(t, "consumer")), address)
}

func (c carrier) reads(t *testing.T, n *node, address string) *reading {
	return &reading{n, n.segment(t, address), c.mine(t, n, contentBytes, engine.RegionOptions{})}
}

// written reports whether a word is w, or as much of it as had been written when
// it was read: a copy is not made word by word.
func written(word []byte, w uint64) bool {
	for i, x := range word {
		if x != 0 && x != byte(w>>(8*i)) {
			return false
		}
	}
	return true
}

// read reads by the address, or from the one publication. It returns the one
// content that it found; what the provider has not written to yet is zero.
func (r *reading) read(t *testing.T, pin engine.Capability) (content uint64, err error) {
	t.Helper()
	r.local.set(t, 0, filled(contentBytes, 1<<31))
	op := whole(engine.Read, r.local, r.segment, placeAddress)
	op.Capability = pin
	if err := r.submit(t, op).Wait(briefly(t)); err != nil {
		return 0, err
	}
	b := r.local.bytes(t)
	for i := 0; i < len(b); i += 8 {
		content = max(content, binary.LittleEndian.Uint64(b[i:])>>32)
	}
	for i := 0; i < len(b); i += 8 {
		if !written(b[i:i+8], content<<32|uint64(i/8)) {
			t.Errorf("bytes of no single content: %s", contents(b))
			break
		}
	}
	return content, nil
}

// reregistrationWorkers read all the while.
const reregistrationWorkers = 8

// One process, one address and length, one region after the other: consumers
// that read all the while get what is published then, or StaleCapability.
func TestMemoryReregistrationAtTheSameAddress(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		count := times(100, 1000)
		p, up := c.startProvider(t, "provider", "127.0.0.1:0")
		var begun, done atomic.Uint64 // contents that are being published, and are
		first := p.publish(t, "publish", 1)
		begun.Store(1)
		done.Store(1)
		checked, warm := c.reading(t, up.Address), c.open(t, c.config(t, "warm"))
		stop := make(chan struct{})
		var readers sync.WaitGroup
		var reads, stale atomic.Int64
		for range reregistrationWorkers {
			r := c.reads(t, warm, up.Address)
			readers.Go(func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(pollEvery): // the provider has other things to do
					}
					least := done.Load()
					content, err := r.read(t, engine.Capability{})
					switch most := begun.Load(); {
					case errors.Is(err, engine.StaleCapability):
						stale.Add(1)
					case err != nil:
						t.Errorf("a read while contents are published: %v", err)
					case content != 0 && content < least || content > most:
						t.Errorf("read content %d, %d to %d were published", content, least, most)
					}
					reads.Add(1)
				}
			})
		}
		same, last := 0, first
		for i := uint64(2); i <= uint64(count); i++ {
			begun.Store(i)
			now := p.publish(t, "publish", i)
			done.Store(i)
			if now.Capability == last.Capability {
				t.Fatal("the same capability again")
			}
			if now.Address != placeAddress {
				last = now
				continue // a thread got in the way
			}
			same++
			if err := checked.segment.Refresh(briefly(t)); err != nil {
				t.Fatal(err)
			}
			for _, pin := range []engine.Capability{{}, now.Capability} { // nothing changes: the live one can be read
				if content, err := checked.read(t, pin); err != nil || content != i {
					t.Fatalf("publication %d, pinned to %v: content %d, %v", i, pin, content, err)
				}
			}
			if content, err := checked.read(t, last.Capability); !errors.Is(err, engine.StaleCapability) {
				t.Fatalf("publication %d: from the one before: content %d, %v", i, content, err)
			}
			last = now
		}
		close(stop)
		readers.Wait()
		if n := reads.Load(); same < count*9/10 || n < int64(count/10) || stale.Load() == n {
			t.Errorf("only %d of %d publications were at the same address; %d reads meanwhile, %d stale", same, count, n, stale.Load())
		}
		for _, n := range []*node{checked.node, warm} {
			if s := n.transport(t, c.name); s.Downs > 0 {
				t.Errorf("the plugin of %s went down %d times: %v", n.Self().Name, s.Downs, s.LastError)
			}
		}
		t.Logf("%d of %d publications at the same address; %d reads meanwhile, %d of them stale", same, count, reads.Load(), stale.Load())
		p.leave(t)
	})
}

// The same while the old region is only withdrawn, and the provider's plugins
// have it still: nothing but the consumer's look at the descriptor keeps it from
// reading old bytes.
func TestMemoryAWithdrawnRegionAtTheSameAddress(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		p, up := c.startProvider(t, "provider", "127.0.0.1:0")
		last := p.publish(t, "publish", 1)
		r := c.reading(t, up.Address)
		same := 0
		for i := uint64(2); i <= 10; i++ {
			if content, err := r.read(t, engine.Capability{}); err != nil || content != i-1 {
				t.Fatalf("publication %d: content %d, %v", i-1, content, err)
			}
			now := p.publish(t, "replace", i)
			if now.Address != last.Address {
				t.Skipf("the kernel placed a region at %#x", now.Address)
			}
			same++
			if err := r.segment.Refresh(briefly(t)); err != nil {
				t.Fatal(err)
			}
			if content, err := r.read(t, engine.Capability{}); err != nil && !errors.Is(err, engine.StaleCapability) || err == nil && content != i {
				t.Fatalf("publication %d: content %d, %v: old bytes", i, content, err)
			}
			last = now
		}
		// It ends as it is: its regions cannot be unmapped in order any more.
		killed := hold(t, p.Process.Pid)
		killed.kill(t)
		_ = p.Wait()
		if same == 0 {
			t.Error("no region took another one's place")
		}
		if s := r.transport(t, c.name); s.Downs > 0 {
			t.Errorf("the consumer's plugin went down %d times: %v", s.Downs, s.LastError)
		}
	})
}

// The provider is killed, or leaves, and comes back at its address, with another
// region at the address of the old one.
func TestMemoryOfARestartedProvider(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		count := times(3, 50)
		p, up := c.startProvider(t, "provider", "127.0.0.1:0")
		last := p.publish(t, "publish", 1)
		r := c.reading(t, up.Address)
		if content, err := r.read(t, engine.Capability{}); err != nil || content != 1 {
			t.Fatalf("content %d, %v", content, err)
		}
		same := 0
		for i := uint64(2); i <= uint64(count)+1; i++ {
			if i%2 == 0 {
				h := hold(t, p.Process.Pid)
				h.kill(t)
				_ = p.Wait()
			} else {
				p.leave(t)
			}
			for _, pid := range last.Plugins {
				until(t, "a plugin to be gone with its host", func() bool { return !alive(pid) })
			}
			p, _ = c.startProvider(t, "provider", up.Address)
			now := p.publish(t, "publish", i)
			if now.Address == last.Address {
				same++
			}
			var content uint64
			until(t, "the new content", func() bool {
				var err error
				if content, err = r.read(t, engine.Capability{}); err == nil && content != i {
					t.Fatalf("start %d: content %d", i, content)
				}
				return err == nil
			})
			if content, err := r.read(t, last.Capability); !errors.Is(err, engine.StaleCapability) {
				t.Fatalf("start %d: from the life before: content %d, %v", i, content, err)
			}
			last = now
		}
		if same < count*9/10 {
			t.Errorf("in only %d of %d lives the region was at the same address", same, count)
		}
		p.leave(t)
	})
}

// mappingsGone is how long a dead provider's may stay.
const mappingsGone = 2 * time.Second

// A provider is gone, and nobody takes its place: what was known of its memory
// goes, and a GPU's memory is free. Then another node gets its address, and
// publishes nothing there: nobody finds the old region.
func TestMemoryOfAProviderThatIsGone(t *testing.T) {
	overInTurn(t, func(t *testing.T, c carrier) {
		p, up := c.startProvider(t, "first", "127.0.0.1:0")
		r := c.reading(t, up.Address)
		was := p.publish(t, "publish", 1)
		if _, err := r.read(t, engine.Capability{}); err != nil {
			t.Fatal(err)
		}
		p.dies(t, r, was.Plugins)
		used := c.used(t) // without the provider
		p, _ = c.startProvider(t, "second", up.Address)
		until(t, "the new node to answer", func() bool { return r.segment.Refresh(briefly(t)) == nil })
		for _, pin := range []engine.Capability{{}, was.Capability} {
			if content, err := r.read(t, pin); !errors.Is(err, engine.StaleCapability) {
				t.Errorf("read content %d, %v", content, err)
			}
		}
		now := p.publish(t, "publish", 2)
		if err := r.segment.Refresh(briefly(t)); err != nil {
			t.Fatal(err)
		}
		if content, err := r.read(t, engine.Capability{}); err != nil || content != 2 {
			t.Errorf("content %d, %v", content, err)
		}
		p.dies(t, r, now.Plugins)
		until(t, "the provider's memory to be free", func() bool { return c.used(t) <= used+unit })
	})
}

// dies kills a provider that has mappings at a reader, which lets go of them in
// time, and waits for its plugins' end.
func (c *child) dies(t *testing.T, r *reading, plugins []int) {
	t.Helper()
	if len(r.Mappings()) == 0 {
		t.Fatal("no mapping: there is nothing to go")
	}
	killed := time.Now()
	h := hold(t, c.Process.Pid)
	defer h.release()
	if !h.signal(unix.SIGKILL) {
		t.Fatal("it is gone before it is killed")
	}
	_ = c.Wait()
	until(t, "the mappings to go", func() bool { return len(r.Mappings()) == 0 })
	t.Logf("mappings gone %v after their provider", lap(killed))
	most := mappingsGone
	if !onHardware() || slow > 1 { // simulated processes share two cores with other tests
		most *= 2 * slow
	}
	if took := time.Since(killed); took > most {
		t.Errorf("the mappings stayed for %v", took)
	}
	for _, pid := range plugins {
		until(t, "a plugin to be gone with its host", func() bool { return !alive(pid) })
	}
}

// used is how much of the GPUs' memory is in use, once that does not change: a
// dead process's goes some time later.
func (c carrier) used(t *testing.T) (n uint64) {
	t.Helper()
	if c.gpus == nil {
		return 0
	}
	n = c.gpus.used(t)
	for still := 0; still < 50; still++ {
		time.Sleep(pollEvery)
		if now := c.gpus.used(t); now != n {
			n, still = now, 0
		}
	}
	return n
}
