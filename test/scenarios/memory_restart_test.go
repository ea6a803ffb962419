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
	local   *engine.Region
}

func (c carrier) reading(t *testing.T, address string) *reading {
	return reads(t, c.open(t, c.config(t, "consumer")), address)
}

func reads(t *testing.T, n *node, address string) *reading {
	return &reading{n, n.segment(t, address), n.allocate(t, contentBytes, engine.RegionOptions{})}
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
	b := r.local.Bytes()
	fill(b, 1<<31)
	op := whole(engine.Read, r.local, r.segment, placeAddress)
	op.Capability = pin
	if err := r.submit(t, op).Wait(briefly(t)); err != nil {
		return 0, err
	}
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

// One process, one address and length, one region after the other: a consumer
// that reads all the while gets what is published then, or StaleCapability.
func TestMemoryReregistrationAtTheSameAddress(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		count := times(100, 1000)
		p, up := c.startProvider(t, "provider", "127.0.0.1:0")
		var begun, done atomic.Uint64 // contents that are being published, and are
		first := p.publish(t, "publish", 1)
		begun.Store(1)
		done.Store(1)
		checked, warm := c.reading(t, up.Address), c.reading(t, up.Address)
		stop := make(chan struct{})
		var reader sync.WaitGroup
		reads, stale := 0, 0
		reader.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				least := done.Load()
				content, err := warm.read(t, engine.Capability{})
				switch most := begun.Load(); {
				case errors.Is(err, engine.StaleCapability):
					stale++
					time.Sleep(pollEvery) // the provider has other things to do
				case err != nil:
					t.Errorf("a read while contents are published: %v", err)
				case content != 0 && content < least || content > most:
					t.Errorf("read content %d, %d to %d were published", content, least, most)
				}
				reads++
			}
		})
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
			if content, err := checked.read(t, engine.Capability{}); err != nil && !errors.Is(err, engine.StaleCapability) || err == nil && content != i {
				t.Fatalf("publication %d: content %d, %v", i, content, err)
			}
			if content, err := checked.read(t, last.Capability); !errors.Is(err, engine.StaleCapability) {
				t.Fatalf("publication %d: from the one before: content %d, %v", i, content, err)
			}
			last = now
		}
		close(stop)
		reader.Wait()
		if same < count*9/10 || reads < count/10 {
			t.Errorf("only %d of %d publications were at the same address; %d reads meanwhile", same, count, reads)
		}
		t.Logf("%d of %d publications at the same address; %d reads meanwhile, %d of them stale", same, count, reads, stale)
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
// goes. Then another node gets its address, and publishes nothing there: nobody
// finds the old region.
func TestMemoryOfAProviderThatIsGone(t *testing.T) {
	overEach(t, func(t *testing.T, c carrier) {
		p, up := c.startProvider(t, "first", "127.0.0.1:0")
		was := p.publish(t, "publish", 1)
		r := c.reading(t, up.Address)
		if _, err := r.read(t, engine.Capability{}); err != nil {
			t.Fatal(err)
		}
		if len(r.Mappings()) == 0 {
			t.Fatal("no mapping: there is nothing to go")
		}
		killed := time.Now()
		h := hold(t, p.Process.Pid)
		defer h.release()
		if !h.signal(unix.SIGKILL) {
			t.Fatal("it is gone before it is killed")
		}
		_ = p.Wait()
		until(t, "the mappings to go", func() bool { return len(r.Mappings()) == 0 })
		t.Logf("mappings gone %v after their provider", lap(killed))
		if took := time.Since(killed); took > 2*mappingsGone*slow {
			t.Errorf("the mappings stayed for %v", took)
		}
		p, _ = c.startProvider(t, "second", up.Address)
		until(t, "the new node to answer", func() bool { return r.segment.Refresh(briefly(t)) == nil })
		for _, pin := range []engine.Capability{{}, was.Capability} {
			if content, err := r.read(t, pin); !errors.Is(err, engine.StaleCapability) {
				t.Errorf("read content %d, %v", content, err)
			}
		}
		p.publish(t, "publish", 2)
		if err := r.segment.Refresh(briefly(t)); err != nil {
			t.Fatal(err)
		}
		if content, err := r.read(t, engine.Capability{}); err != nil || content != 2 {
			t.Errorf("content %d, %v", content, err)
		}
		p.leave(t)
	})
}
