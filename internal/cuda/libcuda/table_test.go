//go:build linux && (amd64 || arm64)

package libcuda

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/cudatest"
)

func TestMain(m *testing.M) {
	if cudatest.IsPeer() {
		if err := cudatest.Serve(New()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// gpus returns the driver of a machine with a GPU, or skips.
func gpus(t testing.TB) (cuda.Driver, []cuda.Info) {
	t.Helper()
	d := New()
	infos, err := d.Devices()
	if len(infos) == 0 {
		t.Skipf("SKIPPED, needs a GPU: %v", err)
	}
	return d, infos
}

// TestTable runs on this machine's GPUs. Compiled, it needs no Go there:
// go test -c -ldflags '-s -w' -o libcuda.test ./internal/cuda/libcuda
func TestTable(t *testing.T) {
	d, _ := gpus(t)
	cudatest.Run(t, func(t *testing.T) cudatest.Rig {
		return cudatest.Rig{
			Driver: d, Peer: func(t *testing.T) *cudatest.Peer { return cudatest.StartPeer(t) },
			Traits: cudatest.Traits{OpensAgain: true, UnmapsNothing: true},
		}
	})
}

// BenchmarkCalls is what calls take through purego, and the hop to the thread.
func BenchmarkCalls(b *testing.B) {
	d, infos := gpus(b)
	dev, err := d.Open(len(infos) - 1)
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	b.Run("hop", func(b *testing.B) {
		for b.Loop() {
			if err := dev.Do(func(cuda.Context) error { return nil }); err != nil {
				b.Fatal(err)
			}
		}
	})
	measure := func(name string, n int64, do func(c cuda.Context, s cuda.Stream, e cuda.Event, from, to cuda.Ptr) error) {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(n)
			err := dev.Do(func(c cuda.Context) error {
				one, err := cuda.Allocate(c, 64<<20, 0)
				if err != nil {
					return err
				}
				two, err := cuda.Allocate(c, 64<<20, 0)
				if err != nil {
					return err
				}
				s, err := c.CreateStream()
				if err != nil {
					return err
				}
				e, err := c.CreateEvent(false)
				if err != nil {
					return err
				}
				for b.Loop() {
					if err := do(c, s, e, one.Base, two.Base); err != nil {
						return err
					}
				}
				for _, err := range []error{c.SyncStream(s), c.DestroyEvent(e), c.DestroyStream(s), one.Close(c), two.Close(c)} {
					if err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				b.Fatal(err)
			}
		})
	}
	for _, n := range []uint64{4 << 10, 64 << 10, 1 << 20, 16 << 20} {
		measure(fmt.Sprintf("copy and sync %d KiB", n>>10), int64(n), func(c cuda.Context, s cuda.Stream, e cuda.Event, from, to cuda.Ptr) error {
			if err := c.Copy(to, from, n, s); err != nil {
				return err
			}
			return c.SyncStream(s)
		})
		measure(fmt.Sprintf("copy, record and poll %d KiB", n>>10), int64(n), func(c cuda.Context, s cuda.Stream, e cuda.Event, from, to cuda.Ptr) error {
			if err := c.Copy(to, from, n, s); err != nil {
				return err
			}
			if err := c.Record(e, s); err != nil {
				return err
			}
			for {
				if done, err := c.QueryEvent(e); done || err != nil {
					return err
				}
			}
		})
	}
	measure("query event", 0, func(c cuda.Context, s cuda.Stream, e cuda.Event, from, to cuda.Ptr) error {
		_, err := c.QueryEvent(e)
		return err
	})
}
