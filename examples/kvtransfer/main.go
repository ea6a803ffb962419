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
// machines each process listens at its own machine's address, and prefill is
// told of decode's:
//
//	kvtransfer -insecure -listen 10.0.0.8 -decode
//	kvtransfer -insecure -listen 10.0.0.7 -peer 10.0.0.8:PORT
//
// `-insecure` is security.insecure, for networks that nobody else is on; an
// application of your own configures TLS instead (docs/operations.md). Each
// process gives up after a minute.
//
// Where there are GPUs the blocks go from the first one's memory to the second
// one's, over NVLink; else from host memory to host memory. `-gpu on` wants a
// GPU, and `-gpu off` none.
package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
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
	var n network
	flag.StringVar(&n.listen, "listen", "", "this machine's IP address, to be reached by another one; without it this machine's processes alone reach it")
	flag.BoolVar(&n.insecure, "insecure", false, "permit -listen without TLS: whoever reaches the address can read, forge and disturb everything")
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	var err error
	switch {
	case *decode:
		err = runDecode(ctx, *plugins, *gpu, n)
	case *peer != "":
		err = runPrefill(ctx, *plugins, *gpu, *peer, n)
	case n != network{}:
		err = errors.New("-listen and -insecure go with -decode or -peer: without them both processes are here")
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
func open(ctx context.Context, name, plugins string, at *place, n network) (*engine.Engine, error) {
	cfg := engine.Config{
		Node:       engine.NodeConfig{Name: name},
		Plugins:    engine.PluginsConfig{Dir: plugins},
		Transports: at.transports(),
	}
	n.reach(&cfg)
	return engine.Open(ctx, cfg)
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
	if !lines.Scan() { // it has said why
		return fmt.Errorf("decode did not start: %w", cmp.Or(child.Wait(), io.ErrUnexpectedEOF))
	}
	address, found := strings.CutPrefix(lines.Text(), listening)
	if !found {
		err = fmt.Errorf("decode says %q and not its address", lines.Text())
	} else {
		err = runPrefill(ctx, plugins, gpu, address, network{})
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
