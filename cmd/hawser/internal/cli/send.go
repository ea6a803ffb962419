package cli

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/sending"
	"github.com/hawser-transport/hawser/engine"
)

func newSend() *cobra.Command {
	s := sendFlags{}
	c := &cobra.Command{
		Use:   "send PEER [-]",
		Short: "Send notifications to a peer and say how they ended",
		Long: `Sends --count notifications to PEER, waits until each has ended, and prints a
summary. PEER is the HOST:PORT on which its node listens, or a name from
registry.static or --peer. The payload is --payload, a --file, standard input
(-), or --size random bytes.

Exit codes:
  0    every notification was acknowledged: it is in the peer's queue; or, by a
       peer at protocol 0 or 1, which acknowledges nothing, handed over: its
       transport has it
  1    wrong arguments or configuration; nothing was sent
  2    some failed, or had not ended when --wait was over
  3    the engine could not start
  130  interrupted; what had been sent is in the summary`,
		Args: rangeArgs(1, 2, "the peer to send to, HOST:PORT or a name from registry.static"),
	}
	s.add(c)
	flags := c.Flags()
	flags.StringVar(&s.name, "name", "hawser.send", "the notifications' name")
	flags.StringVar(&s.node, "node-name", "", "overrides node.name: what the peer is told who sends")
	flags.StringVar(&s.payload, "payload", "", "the payload, as text")
	flags.StringVar(&s.file, "file", "", "file with the payload; - is standard input")
	flags.IntVar(&s.size, "size", 0, "send so many random bytes as the payload")
	flags.IntVarP(&s.count, "count", "n", 1, "how many to send")
	flags.Float64Var(&s.rate, "rate", 0, "how many a second (default: as fast as they are taken)")
	flags.DurationVar(&s.deadline, "deadline", 0, "when a notification that was not acknowledged fails (default: notification.deadline_ms)")
	flags.DurationVar(&s.wait, "wait", 0, "how long to wait for the ends after the last was sent (default: until each has ended)")
	s.output = outputFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error { return s.run(cmd, args) }
	return c
}

const (
	// minRate is one in a day.
	minRate, maxRate = 1.0 / 86400, 1e9
	// maxDeadline is the engine's bound of a notification's life.
	maxDeadline = 600 * time.Second
)

type sendFlags struct {
	engineFlags
	name, node     string
	payload, file  string
	size, count    int
	rate           float64
	deadline, wait time.Duration
	output         *output
}

func (s *sendFlags) run(cmd *cobra.Command, args []string) error {
	if err := s.check(cmd, args); err != nil {
		return err
	}
	s.engineFlags.name = s.node
	cfg, err := s.load(cmd.Context())
	if err != nil {
		return err
	}
	filled, err := cfg.Effective()
	if err != nil {
		return err
	}
	limit := filled.Notification.MaxPayloadBytes - len(s.name)
	payload, err := s.read(cmd, limit)
	if err != nil {
		return err
	}
	e, err := s.openWith(cmd.Context(), cfg, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	bar := newBar(cmd.ErrOrStderr(), s.count, "sending")
	summary, err := sending.Run(cmd.Context(), e, sending.Options{
		Peer: args[0], Name: s.name, Payload: payload, Count: s.count, Rate: s.rate,
		Deadline: s.deadline, Wait: s.wait, Progress: bar.set,
	})
	bar.finish()
	drain, cancel := context.WithCancel(context.Background())
	cancel() // everything has ended, or been waited for long enough
	closeErr := e.Close(drain)
	if err != nil {
		return s.refused(err)
	}
	if summary.Pending > 0 {
		closeErr = nil // said in the summary
	}
	s.print(cmd.OutOrStdout(), summary)
	switch {
	case summary.Interrupted:
		return silently(exitInterrupted)
	case summary.Delivered() != summary.Asked:
		return silently(exitFailed)
	case closeErr != nil:
		return failed(exitFailed, "closed, but not in order: %w", closeErr)
	}
	return nil
}

// refused gives what the engine says to the very first notification its code.
func (s *sendFlags) refused(err error) error {
	if errors.Is(err, engine.InvalidArgument) || errors.Is(err, engine.TooLarge) {
		return &failure{code: exitUsage, err: err}
	}
	return failed(exitFailed, "%w", err)
}

func (s *sendFlags) check(cmd *cobra.Command, args []string) error {
	var payloads []string
	for _, name := range []string{"payload", "file", "size"} {
		if cmd.Flags().Changed(name) {
			payloads = append(payloads, "--"+name)
		}
	}
	if len(args) == 2 {
		if args[1] != "-" {
			return usageError("unexpected argument %q: only - for standard input may follow the peer", args[1])
		}
		payloads = append(payloads, "-")
		s.file = "-"
	}
	if len(payloads) > 1 {
		return usageError("%s exclude each other", strings.Join(payloads, " and "))
	}
	switch {
	case s.count < 1:
		return usageError("--count must be at least 1, not %d", s.count)
	case s.size < 0:
		return usageError("--size must not be negative, as %d is", s.size)
	case cmd.Flags().Changed("rate") && s.rate != 0 && !(s.rate >= minRate && s.rate <= maxRate):
		return usageError("--rate must be %v to %v notifications a second, or 0 for as fast as they are taken, not %v", minRate, maxRate, s.rate)
	case s.deadline < 0:
		return usageError("--deadline must not be negative, as %v is", s.deadline)
	case s.deadline > maxDeadline:
		return usageError("--deadline must be at most %v, not %v", maxDeadline, s.deadline)
	case s.wait < 0:
		return usageError("--wait must not be negative, as %v is", s.wait)
	}
	return nil
}

// read gets the payload, which must not be longer than limit.
func (s *sendFlags) read(cmd *cobra.Command, limit int) ([]byte, error) {
	tooLarge := func(what string) error {
		return failed(exitUsage, "%s: more than the %d bytes that notification.max_payload_bytes leaves for it", what, max(limit, 0))
	}
	switch {
	case s.file == "-":
		return interruptible(cmd.Context(), func() ([]byte, error) {
			return readBounded(cmd.InOrStdin(), limit, tooLarge("standard input"))
		})
	case s.file != "":
		return interruptible(cmd.Context(), func() ([]byte, error) {
			f, err := os.Open(s.file)
			if err != nil {
				return nil, failed(exitUsage, "--file: %w", err)
			}
			defer f.Close()
			return readBounded(f, limit, tooLarge(s.file))
		})
	case s.size > limit:
		return nil, tooLarge("--size")
	case s.size > 0:
		b := make([]byte, s.size)
		_, _ = rand.Read(b) // never fails
		return b, nil
	case len(s.payload) > limit:
		return nil, tooLarge("--payload")
	}
	return []byte(s.payload), nil
}

func readBounded(r io.Reader, limit int, tooLarge error) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, int64(max(limit, 0))+1))
	switch {
	case err != nil:
		return nil, failed(exitUsage, "read the payload: %w", err)
	case len(b) > limit:
		return nil, tooLarge
	}
	return b, nil
}

func (s *sendFlags) print(w io.Writer, sum sending.Summary) {
	if *s.output == outputJSON {
		_ = document(w, sum)
		return
	}
	fmt.Fprintf(w, "to %s: %d sent, %d acknowledged, ", printableName(sum.Peer), sum.Sent, sum.Acked)
	if sum.HandedOver > 0 {
		fmt.Fprintf(w, "%d handed over, ", sum.HandedOver)
	}
	fmt.Fprintf(w, "%d failed", sum.Failed)
	if sum.Pending > 0 {
		fmt.Fprintf(w, ", %d had not ended", sum.Pending)
	}
	fmt.Fprintf(w, " in %.3f s\n", sum.Seconds)
	if sum.Delivered() > 0 {
		fmt.Fprintf(w, "latency to the acknowledgement: p50 %.3f ms, p99 %.3f ms, longest %.3f ms; %s\n",
			sum.Latency.P50MS, sum.Latency.P99MS, sum.Latency.MaxMS, carriedBy(sum.By))
	}
	for _, f := range sum.Failures {
		fmt.Fprintf(w, "%d x %s\n", f.Count, f.Error)
	}
}
