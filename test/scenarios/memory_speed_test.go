//go:build linux && (amd64 || arm64)

package scenarios

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/cudatest"
)

// speedInRow is how many large ops follow each other, two under way, where what
// is between two of them is not to count.
const speedInRow = 16

// TestSpeedOfGPUs measures transfers of an application, through two engines
// and their plugins' processes, with the settings that they have by themselves.
// Its lines that begin with SPEED are a table, together with those of what one
// process copies.
func TestSpeedOfGPUs(t *testing.T) {
	large, rounds, ops := 256<<20, 20, 2000
	if real := os.Getenv(gpuTestVariable) != "" && os.Getenv(simVariable) == ""; !real {
		if os.Getenv(cudatest.SpeedVariable) == "" {
			t.Skip("SKIPPED, needs two GPUs: make gpu-test")
		}
		large, rounds, ops = 8<<20, 3, 50
	}
	leaveNothing(t)
	c := carrier{name: "mnnvl", next: "tcp", remote: cuda.PosixFD, local: cuda.PosixFD}.on(t)
	if len(c.gpus.all) < 2 {
		t.Skip("SKIPPED, needs two GPUs")
	}
	plain := map[int]time.Duration{}
	sizes := []int{4 << 10, 64 << 10, 1 << 20}
	var flow time.Duration // of one of several
	if c.gpus.file == "" {
		for _, n := range append(sizes, large) {
			plain[n] = cudatest.PeerCopies(t, n, map[bool]int{true: rounds, false: ops}[n == large], 1)
			cudatest.Report("cuMemcpyPeerAsync "+cudatest.Size(n), plain[n], n, 0)
		}
		flow = cudatest.PeerCopies(t, large, rounds, speedInRow) / speedInRow
	}
	here, there := c.open(t, c.config(t, "here")), c.open(t, c.config(t, "there"))
	local, remote := c.mine(t, here, large, engine.RegionOptions{}), c.theirs(t, there, large, engine.RegionOptions{})
	segment := here.segment(t, there.address())
	begin := func(kind engine.OpKind, n int) *engine.Transfer {
		x, err := here.Submit(context.Background(), []engine.Op{{
			Kind: kind, Local: local.Region, Segment: segment, Address: remote.Address(), Length: uint64(n),
		}}, engine.SubmitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	end := func(x *engine.Transfer) {
		if err := x.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	for _, kind := range []engine.OpKind{engine.Read, engine.Write} {
		name := fmt.Sprintf("%v by engines %s", kind, cudatest.Size(large))
		took := cudatest.Median(rounds, func() { end(begin(kind, large)) })
		cudatest.Report(name, took, large, plain[large])
		took = cudatest.Median(rounds, func() {
			before := begin(kind, large)
			for range speedInRow - 1 {
				x := begin(kind, large)
				end(before)
				before = x
			}
			end(before)
		}) / speedInRow
		cudatest.Report(fmt.Sprintf("%s, %d in a row", name, speedInRow), took, large, flow)
		for _, n := range sizes {
			took := cudatest.Median(ops, func() { end(begin(kind, n)) })
			cudatest.Report(fmt.Sprintf("%v by engines %s", kind, cudatest.Size(n)), took, n, plain[n])
		}
	}
	if s := here.Stats(); s.OpsFailed+s.ChunksRepeated != 0 {
		t.Errorf("%d ops failed, %d pieces were moved again", s.OpsFailed, s.ChunksRepeated)
	}
}
