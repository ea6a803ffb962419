//go:build linux

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if bin, err = os.MkdirTemp("", "kvtransfer-"); err != nil {
		panic(err)
	}
	defer os.RemoveAll(bin)
	for name, dir := range map[string]string{"kvtransfer": ".", "hawser-tcp": "../../plugins/tcp", "hawser-rpcfallback": "../../plugins/rpcfallback"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(bin, name), dir).CombinedOutput(); err != nil {
			panic(string(out))
		}
	}
	return m.Run()
}

// The example does what it says, in two processes with real plugins.
func TestRun(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "kvtransfer"), "-plugins", bin).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"decode-0 read 32 blocks, 8 MiB, of request 17 from prefill-0\n", "prefill-0 has its 32 blocks back\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("%q is missing in:\n%s", want, out)
		}
	}
}

// Decode notices a block that is not what the manifest says, and memory that is
// not the region that the manifest means.
func TestRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	prefill, err := open(ctx, "prefill", bin)
	if err != nil {
		t.Fatal(err)
	}
	defer shut(prefill)
	const size = 4096
	cache, err := prefill.AllocateHost(4*size, engine.RegionOptions{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	good := manifest{Request: "r", Address: cache.Address(), BlockSize: size, Capability: cache.Capability()}
	for i := range 4 {
		good.Checksums = append(good.Checksums, compute(cache.Bytes()[i*size:][:size], i))
	}
	for _, c := range []struct {
		name, want string
		change     func(*manifest)
	}{
		{"nothing is wrong", "", func(*manifest) {}},
		{"a block", "block 2 of r has checksum", func(m *manifest) { m.Checksums[2]++ }},
		{"another life's memory", "no buffer with capability", func(m *manifest) { m.Capability[0]++ }},
		{"too much", "not 1 to", func(m *manifest) { m.BlockSize = 1 << 62 }},
		{"nothing", "not 1 to", func(m *manifest) { m.Checksums = nil }},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := good
			m.Checksums = append([]uint32(nil), good.Checksums...)
			c.change(&m)
			decode, err := open(ctx, "decode", bin)
			if err != nil {
				t.Fatal(err)
			}
			defer shut(decode)
			served := make(chan error, 1)
			go func() { served <- serveOne(ctx, decode) }()
			err = offer(ctx, prefill, decode.Self().Address, m)
			for _, got := range []error{err, <-served} {
				if c.want == "" && got != nil || c.want != "" && (got == nil || !strings.Contains(got.Error(), c.want)) {
					t.Errorf("got %v, not %q", got, c.want)
				}
			}
		})
	}
	if err := cache.Close(ctx); err != nil {
		t.Error(err)
	}
}
