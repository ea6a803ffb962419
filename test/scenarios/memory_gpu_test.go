//go:build linux

package scenarios

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
)

// What the rows of one provider's memory would see without capabilities: a
// consumer whose mnnvl finds mappings by their address reads old bytes, after a
// registration and after a restart.
func TestGPUMemoryFoundByItsAddressIsOld(t *testing.T) {
	byFD := slices.DeleteFunc(slices.Clone(gpuCarriers), func(c carrier) bool {
		return c.remote == cuda.IPC // whose memory must not be freed while it is mapped
	})
	over(t, byFD, func(t *testing.T, c carrier) {
		p, up := c.startProvider(t, "provider", "127.0.0.1:0")
		last := p.publish(t, "publish", 1)
		cfg := c.config(t, "consumer")
		cfg.Transports[0].Plugin = addressOnly
		r := c.reads(t, open(t, cfg), up.Address)
		if content, err := r.read(t, engine.Capability{}); err != nil || content != 1 {
			t.Fatalf("content %d, %v", content, err)
		}
		for i := uint64(2); i <= 3; i++ {
			now := p.publish(t, "publish", i)
			if now.Address != last.Address || now.Capability == last.Capability {
				t.Fatalf("published %+v after %+v", now, last)
			}
			if err := r.segment.Refresh(briefly(t)); err != nil {
				t.Fatal(err)
			}
			if content, err := r.read(t, engine.Capability{}); err != nil || content != 1 {
				t.Errorf("publication %d: content %d, %v: not the old bytes", i, content, err)
			}
		}
		hold(t, p.Process.Pid).kill(t)
		_ = p.Wait()
		p, _ = c.startProvider(t, "provider", up.Address)
		p.publish(t, "publish", 4)
		var content uint64
		until(t, "a read from the next life", func() (ok bool) {
			var err error
			content, err = r.read(t, engine.Capability{})
			return err == nil
		})
		if content != 1 {
			t.Errorf("content %d from the next life: not the old bytes", content)
		}
		p.leave(t)
	})
}

// killedRate is what a simulated GPU copies in a second while its plugin is
// killed: the kill has most of a second to come before the end.
const killedRate = 64 << 20

// The plugin that copies is killed in the middle of a write, and does not come
// back. No byte of the target changes once its process has ended.
func TestGPUMemoryOfAKilledWriteIsStill(t *testing.T) {
	slow := slices.Clone(gpuCarriers)
	for i := range slow {
		slow[i].sim.BytesPerSecond = killedRate
	}
	over(t, slow, func(t *testing.T, c carrier) {
		size, writes := times(64<<20, 256<<20), 1
		if onHardware() {
			size, writes = 256<<20, 64 // a GPU takes a millisecond for each
		}
		there := c.open(t, c.config(t, "there"))
		remote := c.theirs(t, there, size, engine.RegionOptions{})
		for n := range times(1, 5) {
			cfg := c.config(t, fmt.Sprint("here", n))
			// Nobody begins again where the plugin has ended.
			cfg.Plugins.RestartBackoffMS, cfg.Plugins.MaxRestartBackoffMS = 60_000, 60_000
			cfg.Transfer.ChunkBytes = 8 << 20 // it tells when it is in the middle
			here := c.open(t, cfg)
			local := c.mine(t, here, size, engine.RegionOptions{})
			content := uint64(n + 1)
			local.set(t, 0, bytes.Repeat(filled(stageBytes, content), size/stageBytes))
			segment := here.segment(t, there.address())
			h := hold(t, here.transport(t, c.name).PID)
			x, err := here.Submit(briefly(t), slices.Repeat([]engine.Op{whole(engine.Write, local, segment, remote.Address())}, writes), engine.SubmitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for x.Progress().Bytes == 0 && !isDone(x) {
				time.Sleep(100 * time.Microsecond)
			}
			p := x.Progress()
			h.kill(t)
			before := remote.bytes(t)
			time.Sleep(fenceLate)
			if !bytes.Equal(before, remote.bytes(t)) {
				t.Errorf("bytes have changed after the process of the plugin had ended")
			}
			x.Cancel() // it would wait for the plugin
			err = x.Wait(briefly(t))
			if p.Bytes == p.Total || err == nil {
				t.Fatalf("killed after %d of %d bytes, too late: %v", p.Bytes, p.Total, err)
			}
			t.Logf("killed after %d of %d MiB", p.Bytes>>20, p.Total>>20)
		}
	})
}

// produced is how long a producer's work takes.
const produced = 2 * time.Millisecond

// Data is written that a GPU's work is still producing. With the work's event
// the reader finds what it leaves behind, and without it does not.
func TestGPUMemoryIsSentAfterItsEvent(t *testing.T) {
	over(t, gpuCarriers, func(t *testing.T, c carrier) {
		const size = 64 << 10
		rounds := times(50, 1000)
		if onHardware() {
			rounds = 1000
		}
		queue := engine.NewQueue("made/", engine.QueueBounds{})
		writer, reader := c.open(t, c.config(t, "writer")), open(t, c.config(t, "reader"), engine.WithQueue(queue))
		c.local = cuda.PosixFD
		local, remote := c.mine(t, writer, size, engine.RegionOptions{}), c.theirs(t, reader, size, engine.RegionOptions{})
		segment := writer.segment(t, reader.address())
		p := produce(t, local)
		// found is what the reader finds when it is told of content.
		found := func(content byte, takes time.Duration, e *[sdk.EventBytes]byte) (b []byte, running bool) {
			p.begin(t, content, takes)
			op := whole(engine.Write, local, segment, remote.Address())
			op.Event = e
			x, err := writer.Submit(briefly(t), []engine.Op{op}, engine.SubmitOptions{
				Notification: &engine.Notification{Name: fmt.Sprint("made/", content)},
			})
			if err != nil {
				t.Fatal(err)
			}
			running = p.runs(t)
			r, err := queue.Receive(briefly(t))
			if err != nil {
				t.Fatalf("told of nothing: %v, %v", err, x.Results())
			}
			if f := strings.TrimPrefix(r.Name, "made/"); f != strconv.Itoa(int(content)) {
				t.Fatalf("told of content %s, not of %d", f, content)
			}
			return remote.bytes(t), running
		}
		content := func(n int) byte { return byte(1 + n%255) }
		ran := 0
		for n := range rounds {
			b, running := found(content(n), produced, p.event)
			if want := bytes.Repeat([]byte{content(n)}, size); !bytes.Equal(b, want) {
				t.Fatalf("round %d: the reader finds %d, not %d", n, b[0], content(n))
			}
			if running {
				ran++
			}
		}
		least := rounds / 10 // two busy cores may come to look too late
		if onHardware() {
			least = rounds * 9 / 10
		}
		if ran < least {
			t.Errorf("the work was running in only %d of %d rounds when its content was submitted", ran, rounds)
		}
		takes := 10 * produced
		for n := rounds; ; n++ {
			if b, _ := found(content(n), takes, nil); b[0] != content(n) {
				break
			}
			if takes *= 2; takes > patience {
				t.Fatal("without the event the reader finds what work leaves behind that is running")
			}
		}
		p.settle(t)
		// What is no event is the op's fault, and not the region's.
		op := whole(engine.Write, local, segment, remote.Address())
		op.Event = &[sdk.EventBytes]byte{1}
		if err := writer.submit(t, op).Wait(briefly(t)); !errors.Is(err, engine.InvalidArgument) {
			t.Errorf("an event that there is not: %v", err)
		}
		op.Event = nil
		if err := writer.submit(t, op).Wait(briefly(t)); err != nil {
			t.Errorf("after that: %v", err)
		}
		t.Logf("in %d of %d rounds the work was running; without the event old bytes after %v", ran, rounds, takes)
	})
}

// producer is the application's work on a block of a GPU.
type producer struct {
	*deviceMemory
	work  cuda.Stream
	mark  cuda.Event
	event *[sdk.EventBytes]byte
}

func produce(t *testing.T, b *block) *producer {
	t.Helper()
	p := &producer{deviceMemory: b.device}
	p.do(t, func(c cuda.Context) (err error) {
		if p.work, err = c.CreateStream(); err != nil {
			return err
		}
		if p.mark, err = c.CreateEvent(true); err != nil {
			return err
		}
		h, err := c.ExportEvent(p.mark)
		p.event = (*[sdk.EventBytes]byte)(&h)
		return err
	})
	t.Cleanup(func() {
		p.settle(t)
		p.do(t, func(c cuda.Context) error {
			if err := c.DestroyEvent(p.mark); err != nil {
				return err
			}
			return c.DestroyStream(p.work)
		})
	})
	p.begin(t, 0, time.Nanosecond) // loads its kernel
	p.settle(t)
	return p
}

func (p *producer) do(t *testing.T, f func(cuda.Context) error) {
	t.Helper()
	if err := p.Do(f); err != nil {
		t.Fatal(err)
	}
}

// begin begins work that takes its time and then fills the memory, with the
// event behind it.
func (p *producer) begin(t *testing.T, content byte, takes time.Duration) {
	t.Helper()
	p.do(t, func(c cuda.Context) error {
		if err := c.(cuda.Busier).Busy(uint64(takes), p.work); err != nil {
			return err
		}
		if err := c.Set(p.Base, content, p.Size, p.work); err != nil {
			return err
		}
		return c.Record(p.mark, p.work)
	})
}

func (p *producer) runs(t *testing.T) (running bool) {
	t.Helper()
	p.do(t, func(c cuda.Context) error {
		done, err := c.QueryEvent(p.mark)
		running = !done
		return err
	})
	return running
}

func (p *producer) settle(t *testing.T) {
	t.Helper()
	p.do(t, func(c cuda.Context) error { return c.SyncStream(p.work) })
}
