package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine"
)

func newNode() *cobra.Command {
	n := nodeFlags{}
	c := &cobra.Command{
		Use:   "node",
		Short: "Run a node until it is told to stop",
		Long: `Runs an engine with its plugins and says where it listens. What peers send is
received and, with --print, printed; otherwise it is counted and dropped.

hawser status, peers, mappings and plugin restart ask it over its admin
socket, which lies in the user's runtime directory unless --admin-socket or the
configuration says otherwise. With --admin-http it serves /healthz, /readyz,
/metrics and a page for people.

SIGTERM and SIGINT end it in order: it takes no new work, waits for what is
pending at most as long as --drain says, says goodbye to its peers and stops
the plugins. SIGHUP reads the configuration file again and changes the
transports to what it says, without losing a notification.`,
		Args: noArgs,
	}
	n.add(c)
	n.addListen(c)
	n.addAdmin(c)
	flags := c.Flags()
	flags.StringVar(&n.name, "name", "", "overrides node.name: what peers and logs call this node")
	flags.BoolVar(&n.print, "print", false, "print what is received")
	flags.DurationVar(&n.drain, "drain", 10*time.Second, "how long to wait for what is pending when told to stop")
	n.output = outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error { return n.run(cmd) }
	return c
}

type nodeFlags struct {
	engineFlags
	print  bool
	drain  time.Duration
	output *output
}

func (n *nodeFlags) run(cmd *cobra.Command) error {
	if n.drain < 0 {
		return usageError("--drain must not be negative, as %v is", n.drain)
	}
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	reload := make(chan os.Signal, 1)
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	e, err := n.open(ctx, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	printUp(out, *n.output, e)
	var tasks sync.WaitGroup
	receive, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	tasks.Go(func() { n.receive(receive, e, out) })
	for running := true; running; {
		select {
		case <-reload:
			n.reload(ctx, e, out, cmd.ErrOrStderr())
		case <-ctx.Done():
			running = false
		}
	}
	err = shut(e, n.drain)
	stop()
	tasks.Wait()
	if err != nil {
		return failed(exitFailed, "closed, but not in order: %w", err)
	}
	return nil
}

// printUp says that a node is up.
func printUp(w io.Writer, o output, e *engine.Engine) {
	self, transports := e.Self(), transportsOf(e)
	if o == outputJSON {
		_ = line(w, upJSON{"listening", os.Getpid(), nodeOf(self), transports, e.AdminSocket(), e.AdminHTTP()})
		return
	}
	fmt.Fprintf(w, "%s listens on %s (incarnation %s)\n", printableName(self.Name), self.Address, self.Incarnation.Short())
	if s := e.AdminSocket(); s != "" {
		fmt.Fprintf(w, "  admin socket: %s\n", s)
	}
	if a := e.AdminHTTP(); a != "" {
		fmt.Fprintf(w, "  health, metrics and status: http://%s/\n", a)
	}
	for _, t := range transports {
		if t.Error != "" && t.State != "up" {
			fmt.Fprintf(w, "  %s: %s: %s\n", t.Name, t.State, t.Error)
		} else {
			fmt.Fprintf(w, "  %s: %s, pid %d\n", t.Name, t.State, t.PID)
		}
	}
}

// receive takes what arrives until the engine is closed and nothing is left.
func (n *nodeFlags) receive(ctx context.Context, e *engine.Engine, out io.Writer) {
	for {
		r, err := e.Receive(ctx)
		if err != nil {
			return
		}
		if n.print {
			_ = printReceived(out, *n.output, r, time.Now())
		}
	}
}

// reload applies the configuration as it is now. A fault leaves the node as it
// is.
func (n *nodeFlags) reload(ctx context.Context, e *engine.Engine, out, errs io.Writer) {
	cfg, err := n.load(ctx)
	if err == nil {
		err = e.Reload(ctx, cfg)
	}
	if err != nil {
		report(errs, nil, fmt.Errorf("reload: %w", err))
	}
	if *n.output == outputJSON {
		j := struct {
			Event      string          `json:"event"`
			Error      string          `json:"error,omitempty"`
			Transports []transportJSON `json:"transports"`
		}{"reloaded", "", transportsOf(e)}
		if err != nil {
			j.Event, j.Error = "reload failed", err.Error()
		}
		_ = line(out, j)
	} else if err == nil {
		fmt.Fprintln(out, "reloaded")
	}
}
