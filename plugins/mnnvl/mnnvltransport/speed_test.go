//go:build linux && (amd64 || arm64)

package mnnvltransport

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda/cudatest"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
)

// TestSpeed measures transfers between two GPUs against one process that copies
// between them with peer access. Its lines that begin with SPEED are a table for
// test/gpu/run.sh.
func TestSpeed(t *testing.T) {
	real := hardware() != nil
	if !real && os.Getenv(cudatest.SpeedVariable) == "" {
		t.Skip("SKIPPED, needs two GPUs: make gpu-test")
	}
	l := newLab(t)
	if len(l.devices) < 2 {
		t.Skip("SKIPPED, needs two GPUs")
	}
	large, rounds, ops := 256<<20, 20, 2000
	if !real {
		large, rounds, ops = 8<<20, 3, 50
	}
	plain := map[int]time.Duration{}
	var flow time.Duration // of one of several
	sizes := []int{4 << 10, 64 << 10, 1 << 20}
	if real {
		for _, n := range append(sizes, large) {
			plain[n] = cudatest.PeerCopies(t, n, map[bool]int{true: rounds, false: ops}[n == large], 1)
			cudatest.Report("cuMemcpyPeerAsync "+cudatest.Size(n), plain[n], n, 0)
		}
		flow = cudatest.PeerCopies(t, large, rounds, inRow) / inRow
		cudatest.Report(fmt.Sprintf("cuMemcpyPeerAsync %s, %d in a row", cudatest.Size(large), inRow), flow, large, 0)
	}
	for _, way := range []string{"in process", "over the link"} {
		t.Run(way, func(t *testing.T) {
			start := func(instance uint64) *side {
				if way == "in process" {
					return l.start(t, l.transport(t), instance)
				}
				return l.start(t, l.binary(t, plugin(t)), instance)
			}
			a, b := start(1), start(2)
			here, there := a.register(t, l.on(t, 0, large), true, 1<<40, 1), b.register(t, l.on(t, 1, large), true, 1<<41, 1)
			a.announce(t, there)
			w := connect(t, a, b)
			w.must(opOf(sdk.Read, here, there, 1)) // imports
			for _, kind := range []sdk.OpKind{sdk.Read, sdk.Write} {
				name := fmt.Sprintf("%v %s %s", kind, way, cudatest.Size(large))
				took := cudatest.Median(rounds, func() { w.all(kind, here, there, large, 1, large) })
				cudatest.Report(name, took, large, plain[large])
				took = cudatest.Median(rounds, func() { w.all(kind, here, there, large, inRow, 2*large) }) / inRow
				cudatest.Report(fmt.Sprintf("%s, %d in a row", name, inRow), took, large, flow)
				for _, n := range sizes {
					took := cudatest.Median(ops, func() { w.must(opOf(kind, here, there, uint64(n))) })
					cudatest.Report(fmt.Sprintf("%v %s %s", kind, way, cudatest.Size(n)), took, n, plain[n])
				}
			}
		})
	}
}

// inRow is how many large ops follow each other where what is between two of
// them is not to count.
const inRow = 16

// all moves a whole region several times, by the largest ops, with so many bytes
// under way.
func (l *line) all(kind sdk.OpKind, here, there publishedRegion, n, times, under int) {
	var waiting []<-chan sdk.Completion
	wait := func() {
		if c := <-waiting[0]; c.Outcome != sdk.Done {
			l.t.Errorf("%v: %v (%v)", kind, c.Outcome, c.Code)
		}
		waiting = waiting[1:]
	}
	piece := min(limits.MaxOp, n)
	for range times {
		for at := 0; at < n; at += piece {
			if (len(waiting)+1)*piece > under {
				wait()
			}
			o := opOf(kind, here, there, uint64(min(piece, n-at)))
			o.LocalOffset, o.RemoteOffset = uint64(at), uint64(at)
			waiting = append(waiting, l.post(o))
		}
	}
	for len(waiting) > 0 {
		wait()
	}
}

// BenchmarkMappingHit is what an op pays for its two mappings when they are
// there.
func BenchmarkMappingHit(b *testing.B) {
	l := newLab(b)
	x, y := l.transport(b), l.transport(b)
	a, p := l.start(b, x, 1), l.start(b, y, 2)
	here, there := a.register(b, l.on(b, 0, 4096), true, 1<<40, 1), p.register(b, l.on(b, len(l.devices)-1, 4096), true, 1<<41, 1)
	a.announce(b, there)
	connect(b, a, p).must(opOf(sdk.Read, here, there, 1))
	o := opOf(sdk.Read, here, there, 4096)
	r := x.remotes.find(p.Inc, &o)
	d := x.regions.get(here.Capability).device
	local := d.cache.NewLocal()
	defer local.Close()
	for b.Loop() {
		lease, err := local.Acquire(ended, r.key, 0, 4096)
		if err != nil {
			b.Fatal(err)
		}
		lease.Release()
	}
}

// TestEventRounds: with the producer's event the copy finds its final bytes each
// time, without it not.
func TestEventRounds(t *testing.T) {
	const size = 64 << 10
	rounds := 1000
	if hardware() == nil {
		rounds = 30
	}
	l := newLab(t)
	a, b := l.start(t, l.apart(t), 1), l.start(t, l.transport(t), 2)
	mine, theirs := l.on(t, 0, size), l.on(t, len(l.devices)-1, size)
	here, there := a.register(t, mine, true, 1<<40, 1), b.register(t, theirs, true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Write, here, there, size))
	p := l.producer(t, mine)
	for _, with := range []bool{true, false} {
		wrong := 0
		for i := range rounds {
			value := byte(i%250 + 1)
			o := opOf(sdk.Write, here, there, size)
			if h := p.produce(value, 500*time.Microsecond); with {
				o.Event = h
			}
			if w.must(o); t.Failed() {
				t.FailNow()
			}
			if x, y := bytesOf(t, theirs, size); x != value || y != value {
				wrong++
			}
			p.settle()
		}
		if with == (wrong > 0) {
			t.Errorf("with the event %t: %d of %d rounds found other bytes", with, wrong, rounds)
		}
	}
}

// TestKilledMidWrite: once the plugin's process has been reaped, no byte of the
// target changes any more.
func TestKilledMidWrite(t *testing.T) {
	large := 256 << 20
	if hardware() == nil {
		large = 8 << 20
	}
	path := plugin(t)
	l := newLab(t)
	b := l.start(t, l.transport(t), 2)
	mine, theirs := l.on(t, 0, large), l.on(t, len(l.devices)-1, large)
	there := b.register(t, theirs, true, 1<<41, 1)
	for round := range 5 {
		tr := l.binary(t, path)
		inc := sdk.Incarnation{0: byte(round), 15: 3}
		setup, err := tr.Configure(rigtest.Context(t), sdk.Config{Instance: 1, Incarnation: inc, Settings: []byte("{}")})
		if err != nil {
			t.Fatal(err)
		}
		a := &side{&rigtest.Node{Transport: tr, Inc: inc, Setup: setup}, tr.(sdk.Mover), 1}
		fill(t, mine, byte(2*round+1), large)
		fill(t, theirs, byte(2*round), large)
		here := a.register(t, mine, true, 1<<40, 1)
		a.announce(t, there)
		w := connect(t, a, b)
		w.must(opOf(sdk.Write, here, there, 1))
		for at := 0; at < large; at += 1 << 20 {
			o := opOf(sdk.Write, here, there, 1<<20)
			o.LocalOffset, o.RemoteOffset = uint64(at), uint64(at)
			if at < limits.InflightBytes {
				w.post(o)
			}
		}
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = tr.Close(ended) // kills it, and returns once it was reaped
		first, second := make([]byte, large), make([]byte, large)
		for _, into := range [][]byte{first, second} {
			if _, err := theirs.ReadAt(into, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(30 * time.Millisecond) // nothing may happen meanwhile
		}
		written := 0
		for i := 0; i < large; i += 1 << 20 {
			if first[i] == byte(2*round+1) {
				written++
			}
		}
		t.Logf("round %d: %d MiB were written", round, written)
		if string(first) != string(second) {
			t.Errorf("round %d: bytes have changed after the process was reaped", round)
		}
	}
}
