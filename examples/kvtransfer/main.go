// Command kvtransfer hands KV-cache blocks from a prefill process to a decode
// process. Prefill publishes the blocks as a region of its memory and tells
// decode where they are; decode reads them on receipt, checks every byte, and
// says that it has them; prefill then takes its memory back.
//
// Run it from the repository's root after `make build`:
//
//	go run ./examples/kvtransfer -plugins bin
//
// It is the prefill process, and starts the decode process itself. On two
// machines it would not: there `-decode` runs alone, and `-peer` names its
// address.
//
// Where there are GPUs the blocks go from the first one's memory to the second
// one's, over NVLink; else from host memory to host memory. `-gpu on` wants a
// GPU, and `-gpu off` none.
package main

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

func main() {
	plugins := flag.String("plugins", "bin", "directory of the plugin binaries")
	decode := flag.Bool("decode", false, "be the decode process: print its address, and serve one request")
	peer := flag.String("peer", "", "the decode process's address; without it one is started")
	gpu := flag.String("gpu", "auto", "keep the blocks in a GPU's memory: on, off, or auto, where there is a GPU")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var err error
	switch {
	case *decode:
		err = runDecode(ctx, *plugins, *gpu)
	case *peer != "":
		err = runPrefill(ctx, *plugins, *gpu, *peer)
	default:
		err = runBoth(ctx, *plugins, *gpu)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kvtransfer:", err)
		os.Exit(1)
	}
}

// open starts an engine over whatever transports have a plugin and a device
// here.
func open(ctx context.Context, name, plugins string, at *place) (*engine.Engine, error) {
	return engine.Open(ctx, engine.Config{
		Node:       engine.NodeConfig{Name: name},
		Plugins:    engine.PluginsConfig{Dir: plugins},
		Transports: at.transports(),
	})
}

// shut closes an engine, giving what is pending some time to end.
func shut(e *engine.Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "kvtransfer:", err)
	}
}

// runBoth starts a decode process, and is the prefill process towards it.
func runBoth(ctx context.Context, plugins, gpu string) error {
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	child := exec.CommandContext(ctx, exe, "-decode", "-plugins", plugins, "-gpu", gpu)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Scan()
	address, found := strings.CutPrefix(lines.Text(), listening)
	if !found {
		err = fmt.Errorf("decode did not start: %q", lines.Text())
	} else {
		err = runPrefill(ctx, plugins, gpu, address)
	}
	if err != nil {
		_ = child.Process.Kill()
	}
	for lines.Scan() {
		fmt.Println(lines.Text())
	}
	if ended := child.Wait(); err == nil && ended != nil {
		err = fmt.Errorf("decode: %w", ended)
	}
	return err
}
