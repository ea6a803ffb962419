//go:build linux && (amd64 || arm64)

package cudatest

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/ebitengine/purego"
)

// SpeedVariable, if it is set, makes tests that measure GPUs run on the simulated
// machine, too, where they show that they work and no more.
const SpeedVariable = "HAWSER_SPEED"

// Median is that of what rounds of f take, after a tenth of them to warm up.
func Median(rounds int, f func()) time.Duration {
	took := make([]time.Duration, 0, rounds)
	for i := range rounds + rounds/10 {
		began := time.Now()
		f()
		if i >= rounds/10 {
			took = append(took, time.Since(began))
		}
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// Size is a number of bytes for people.
func Size(n int) string {
	if n < 1<<20 {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

// Report prints a line of the table: a bandwidth as a ratio, a latency as what it
// has more.
func Report(name string, took time.Duration, n int, plain time.Duration) {
	line := fmt.Sprintf("SPEED | %-36s | %10.1f us | %7.1f GB/s |", name, float64(took)/1e3, float64(n)/float64(took))
	switch {
	case plain == 0:
	case n >= 16<<20:
		line += fmt.Sprintf(" %.3f x of plain", float64(plain)/float64(took))
	default:
		line += fmt.Sprintf(" %+.1f us", float64(took-plain)/1e3)
	}
	fmt.Println(line)
}

// PeerCopies is the median of so many copies from GPU 1 to GPU 0, waited for, in
// a process that does nothing else.
func PeerCopies(t *testing.T, n, rounds, times int) time.Duration {
	t.Helper()
	lib, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		t.Fatal(err)
	}
	var (
		retain  func(ctx *uint64, device int32) int32
		release func(device int32) int32
		current func(ctx uint64) int32
		enable  func(peer uint64, flags uint32) int32
		disable func(peer uint64) int32
		alloc   func(p *uint64, n uintptr) int32
		free    func(p uint64) int32
		create  func(s *uint64, flags uint32) int32
		destroy func(s uint64) int32
		wait    func(s uint64) int32
		copies  func(dst, dstCtx, src, srcCtx uint64, n uintptr, s uint64) int32
	)
	for name, f := range map[string]any{
		"cuDevicePrimaryCtxRetain": &retain, "cuDevicePrimaryCtxRelease_v2": &release, "cuCtxSetCurrent": &current,
		"cuCtxEnablePeerAccess": &enable, "cuCtxDisablePeerAccess": &disable, "cuMemAlloc_v2": &alloc, "cuMemFree_v2": &free,
		"cuStreamCreate": &create, "cuStreamDestroy_v2": &destroy, "cuStreamSynchronize": &wait, "cuMemcpyPeerAsync": &copies,
	} {
		purego.RegisterLibFunc(f, lib, name)
	}
	must := func(what string, r int32) {
		t.Helper()
		if r != 0 {
			t.Fatalf("%s: CUDA error %d", what, r)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ctx, mem [2]uint64
	for i := range ctx {
		must("retain", retain(&ctx[i], int32(i)))
		must("set current", current(ctx[i]))
		must("allocate", alloc(&mem[i], uintptr(n)))
	}
	for i := range ctx {
		must("set current", current(ctx[i]))
		must("peer access", enable(ctx[1-i], 0))
	}
	must("set current", current(ctx[0]))
	var s uint64
	must("stream", create(&s, 1))
	took := Median(rounds, func() {
		for range times {
			must("copy", copies(mem[0], ctx[0], mem[1], ctx[1], uintptr(n), s))
		}
		must("wait", wait(s))
	})
	must("destroy", destroy(s))
	for i := range ctx {
		must("set current", current(ctx[i]))
		must("no peer access", disable(ctx[1-i]))
		must("free", free(mem[i]))
	}
	must("set current", current(0))
	for i := range ctx {
		must("release", release(int32(i)))
	}
	return took
}
