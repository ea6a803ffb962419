package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

func newRecv() *cobra.Command {
	r := recvFlags{}
	c := &cobra.Command{
		Use:   "recv",
		Short: "Receive notifications and print them",
		Long: `Runs a node that prints what it receives: in text with names and payloads
quoted as in Go, or with -o json one line each, the payload in base64. Where it
listens is said on stderr, or with -o json in the first line.

Ends after --count notifications, and with exit code 4 if --timeout is over
before that many have arrived.`,
		Args: noArgs,
	}
	r.add(c)
	r.addListen(c)
	flags := c.Flags()
	flags.StringVar(&r.name, "name", "", "overrides node.name: what peers and logs call this node")
	flags.IntVar(&r.count, "count", 0, "end after so many (default: never)")
	flags.DurationVar(&r.timeout, "timeout", 0, "end after this time (default: never)")
	r.output = outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return r.run(cmd) }
	return c
}

type recvFlags struct {
	engineFlags
	count   int
	timeout time.Duration
	output  *output
}

// recvDrain is how long acknowledgements may take to go out at the end.
const recvDrain = 2 * time.Second

func (r *recvFlags) run(cmd *cobra.Command) (err error) {
	if r.count < 0 {
		return usageError("--count must not be negative, as %d is", r.count)
	}
	if r.timeout < 0 {
		return usageError("--timeout must not be negative, as %v is", r.timeout)
	}
	ctx := cmd.Context()
	e, err := r.open(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := shut(e, recvDrain); err == nil && closeErr != nil {
			err = failed(exitFailed, "closed, but not in order: %w", closeErr)
		}
	}()
	if *r.output == outputJSON {
		printUp(cmd.OutOrStdout(), outputJSON, e)
	} else {
		printUp(cmd.ErrOrStderr(), outputText, e)
	}
	if r.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.timeout)
		defer cancel()
	}
	return r.receive(ctx, cmd, e)
}

func (r *recvFlags) receive(ctx context.Context, cmd *cobra.Command, e *engine.Engine) error {
	for n := 0; r.count == 0 || n < r.count; n++ {
		got, err := e.Receive(ctx)
		switch {
		case err == nil:
		case cmd.Context().Err() != nil:
			return silently(exitInterrupted)
		case errors.Is(err, context.DeadlineExceeded) && r.count > 0:
			return failed(exitTimeout, "%d of %d received within %v", n, r.count, r.timeout)
		case errors.Is(err, context.DeadlineExceeded):
			return nil
		default:
			return err
		}
		if err := printReceived(cmd.OutOrStdout(), *r.output, got, time.Now()); err != nil {
			return err
		}
	}
	return nil
}
