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
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	// A node reloads, and nohup's children go on.
	if (len(os.Args) < 2 || os.Args[1] != "node") && !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	// The first signal ends things in order, the second one at once.
	context.AfterFunc(ctx, stop)
	// A pipe that nobody reads any more is an error of the write.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	os.Exit(cli.Run(ctx, os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
