// Command hawser runs and tries out Hawser nodes: see `hawser --help`.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	// The first signal ends things in order, the second one at once.
	context.AfterFunc(ctx, stop)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
