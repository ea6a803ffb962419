// Command embed shows a host program with Hawser inside: two engines, which
// would be two processes of a fleet, tell each other something over whatever
// transports their plugins offer.
//
// Run it from the repository's root after `make build`:
//
//	go run ./examples/embed -plugins bin
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

func main() {
	plugins := flag.String("plugins", "bin", "directory of the plugin binaries")
	flag.Parse()
	if err := run(*plugins); err != nil {
		fmt.Fprintln(os.Stderr, "embed:", err)
		os.Exit(1)
	}
}

func run(plugins string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	// An engine starts the plugin processes that its configuration lists; the
	// zero Config tries rdma, and lists tcp and the RPC fallback.
	prefill, err := engine.Open(ctx, engine.Config{
		Node:    engine.NodeConfig{Name: "prefill-0"},
		Plugins: engine.PluginsConfig{Dir: plugins},
	})
	if err != nil {
		return err
	}
	defer shut(prefill)
	decode, err := engine.Open(ctx, engine.Config{
		Node:    engine.NodeConfig{Name: "decode-0"},
		Plugins: engine.PluginsConfig{Dir: plugins},
	})
	if err != nil {
		return err
	}
	defer shut(decode)

	// With the p2p registry a peer's name is its address.
	delivery, err := prefill.Notify(ctx, decode.Self().Address, engine.Notification{
		Name: "kv-ready", Payload: []byte("request 17: blocks 0-31"),
	})
	if err != nil {
		return err
	}
	got, err := decode.Receive(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("%s got %q from %s over %s: %s\n", decode.Self().Name, got.Name, got.From.Name, got.Transport, got.Payload)

	// Wait returns nil once the notification is in the receiver's queue.
	if err := delivery.Wait(ctx); err != nil {
		return err
	}
	fmt.Printf("%s knows that it was %v\n", prefill.Self().Name, delivery.Ended())
	return nil
}

// shut closes an engine, giving what is pending some time to end.
func shut(e *engine.Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		log.Print(err)
	}
}
