package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine/admin"
)

const (
	// askTimeout bounds a question to a node that is only to look.
	askTimeout = 5 * time.Second
	// restartTimeout bounds a restart: drain, stop and start.
	restartTimeout = 2*time.Minute + askTimeout
)

// socketFlag gives a command its --socket.
func socketFlag(cmd *cobra.Command) *string {
	var path string
	cmd.Flags().StringVar(&path, "socket", "", "the node's admin socket (default: that of the one node that this user runs here)")
	return &path
}

// dialNode finds the node to ask.
func dialNode(ctx context.Context, path string) (*admin.Client, error) {
	if path != "" {
		return admin.Dial(path), nil
	}
	switch found := admin.Discover(); len(found) {
	case 1:
		return admin.Dial(found[0]), nil
	case 0:
		return nil, failed(exitUnable, "this user runs no node here (looked in %s): start one with `hawser node`, "+
			"or name an engine's admin.socket with --socket", admin.Dir())
	default:
		text := "several nodes run here: choose one with --socket"
		for _, f := range found {
			name := unanswered
			if n, err := node(ctx, admin.Dial(f)); err == nil {
				name = printableName(n.Name) + " at " + printableName(n.Address)
			}
			text += "\n  " + f + "  " + name
		}
		return nil, failed(exitUsage, "%s", text)
	}
}

// ask has a question put to the node.
func ask(cmd *cobra.Command, socket string, question func(context.Context, *admin.Client) error) error {
	n, err := dialNode(cmd.Context(), socket)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
	defer cancel()
	return adminError(cmd.Context(), n, question(ctx, n))
}

func node(ctx context.Context, c *admin.Client) (admin.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return c.Node(ctx)
}

// adminError gives what a node, or nobody, answered its exit code.
func adminError(ctx context.Context, c *admin.Client, err error) error {
	var answered *admin.Error
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err // interrupted
	case errors.Is(err, admin.ErrNobody):
		return failed(exitUnable, "no node listens on %s: is it running, and is that its admin.socket?", c.Path())
	case errors.As(err, &answered) && answered.Status == 400:
		return failed(exitUsage, "%w", err)
	case errors.As(err, &answered):
		return failed(exitFailed, "%w", err)
	case errors.Is(err, context.DeadlineExceeded):
		return failed(exitTimeout, "the node at %s has not answered: %w", c.Path(), err)
	}
	return err
}

func newPeers() *cobra.Command {
	var limit int
	c := &cobra.Command{
		Use:   "peers",
		Short: "List a running node's peers and the paths to them",
		Long: `Asks a running node, or an engine within a program, over its admin socket what it
holds of each peer: how far sending has come, what is pending, how much room the
peer grants, when it was heard, whether it is marked as silent and for how long,
and each path with its state (if it is paused, for how long and which pause in a
row that is), what is under way on it and what went wrong last. Of peers whose
memory is used here it lists the segment: the version of the descriptor, how many
regions it has, who has it open, the ops under way and the endpoints for them.

An engine within a program has a socket if its configuration has admin.socket;
name it with --socket.`,
		Args: noArgs,
	}
	c.Flags().IntVar(&limit, "limit", 1000, "list so many at most")
	socket, o := socketFlag(c), outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 1 || limit > admin.MaxPeers {
			return usageError("--limit must be 1 to %d", admin.MaxPeers)
		}
		return ask(cmd, *socket, func(ctx context.Context, n *admin.Client) error {
			peers, err := n.Peers(ctx, limit)
			if err != nil {
				return err
			}
			if *o == outputJSON {
				return document(cmd.OutOrStdout(), peers)
			}
			printPeers(cmd.OutOrStdout(), peers, time.Now())
			return nil
		})
	}
	return c
}

func printPeers(w io.Writer, list admin.Peers, now time.Time) {
	if list.Total == 0 {
		fmt.Fprintln(w, "no peers")
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "PEER\tADDRESS\tSENDING\tRECEIVING\tPENDING\tOUTBOX\tROOM\tHEARD\tPATH\tSTATE\tIN FLIGHT\tTROUBLE")
	for _, p := range list.Peers {
		name, room := printableName(p.Name), fmt.Sprint(p.Room)
		switch {
		case p.Self:
			name += " (itself)"
		case p.Name == "":
			name = "?"
		}
		if p.Held {
			room += " (held back)"
		}
		receiving := "no"
		if p.Receiving {
			receiving = "yes"
		}
		lead := fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%d B\t%s\t%s", name, printableName(p.Address), p.Session, receiving, p.Pending,
			p.OutboxBytes, room, heardOf(p, now))
		if len(p.Paths) == 0 {
			fmt.Fprintf(table, "%s\t-\t-\t-\t%s\n", lead, clipped(p.HelloError))
		}
		for i, path := range p.Paths {
			if i > 0 {
				lead = strings.Repeat("\t", 7)
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%s\n", lead, wayOf(path), stateOf(path, now), path.InFlight, clipped(path.Trouble))
		}
	}
	_ = table.Flush()
	printSegments(w, list.Peers)
	if more := list.Total - len(list.Peers); more > 0 {
		fmt.Fprintf(w, "and %d more: see --limit\n", more)
	}
}

func wayOf(p admin.Path) string {
	way := fmt.Sprintf("%s#%d", printableName(p.Transport), p.Instance)
	if p.Path != "" && p.Path != "main" {
		way += "/" + printableName(p.Path)
	}
	return way
}

// heardOf is when a peer last said something, and, if it is marked as silent,
// for how long calls to it fail at once yet.
func heardOf(p admin.Peer, now time.Time) string {
	heard := ago(now, p.Heard)
	if p.Cooldowns > 0 {
		heard += fmt.Sprintf(", silent (cooldown %d, %v more)", p.Cooldowns, remaining(now, p.SilentUntil))
	}
	return heard
}

func stateOf(p admin.Path, now time.Time) string {
	state := connectionOf(p, now)
	switch {
	case !p.PausedUntil.IsZero():
		return fmt.Sprintf("paused (pause %d, %v more)", p.Pauses, remaining(now, p.PausedUntil))
	case p.Pauses > 0:
		return fmt.Sprintf("%s, on probation after pause %d", state, p.Pauses)
	}
	return state
}

func remaining(now, t time.Time) time.Duration {
	return max(0, t.Sub(now)).Round(100 * time.Millisecond)
}

func connectionOf(p admin.Path, now time.Time) string {
	switch {
	case p.RetryAt.After(now):
		return fmt.Sprintf("%s, again in %v", p.State, p.RetryAt.Sub(now).Round(100*time.Millisecond))
	case !p.Since.IsZero():
		return fmt.Sprintf("%s for %v", p.State, now.Sub(p.Since).Round(time.Second))
	}
	return p.State
}

func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return now.Sub(t).Round(time.Second).String() + " ago"
}

// clipped is somebody's words as one short line without anything that a
// terminal acts on.
func clipped(s string) string {
	const most = 120
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "..."
	}
	return printableText(s)
}

// printableText is text without control characters.
func printableText(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

// statusJSON is a node for programs.
type statusJSON struct {
	Socket     string            `json:"socket"`
	Node       admin.Node        `json:"node"`
	Transports []admin.Transport `json:"transports"`
	PeersTotal int               `json:"peers_total"`
	Stats      map[string]int64  `json:"stats"`
}

func newNodeStatus() *cobra.Command {
	c := &cobra.Command{
		Use:   "status",
		Short: "Show how a running node fares: readiness, transports, queues, counters",
		Long: `Asks a running node, or an engine within a program, over its admin socket. Exits
with 0 if it is ready, and with 2 if not: no transport is up, or it is closing.`,
		Args: noArgs,
	}
	socket, o := socketFlag(c), outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		n, err := dialNode(cmd.Context(), *socket)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), askTimeout)
		defer cancel()
		s, err := askStatus(ctx, n)
		if err != nil {
			return adminError(cmd.Context(), n, err)
		}
		if *o == outputJSON {
			err = document(cmd.OutOrStdout(), s)
		} else {
			printStatus(cmd.OutOrStdout(), s, time.Now())
		}
		if err == nil && !s.Node.Ready {
			err = silently(exitFailed)
		}
		return err
	}
	return c
}

func askStatus(ctx context.Context, n *admin.Client) (s statusJSON, err error) {
	s.Socket = n.Path()
	if s.Node, err = n.Node(ctx); err != nil {
		return s, err
	}
	if s.Transports, err = n.Transports(ctx); err != nil {
		return s, err
	}
	peers, err := n.Peers(ctx, 1)
	if err != nil {
		return s, err
	}
	s.PeersTotal = peers.Total
	s.Stats, err = n.Stats(ctx)
	return s, err
}

func printStatus(w io.Writer, s statusJSON, now time.Time) {
	ready := "ready"
	if !s.Node.Ready {
		ready = "not ready: " + s.Node.Reason
	}
	fmt.Fprintf(w, "%s at %s: %s\n", printableName(s.Node.Name), s.Node.Address, ready)
	fmt.Fprintf(w, "pid %d, for %v; incarnation %s; %d peers\n\n", s.Node.PID, now.Sub(s.Node.Started).Round(time.Second), s.Node.Incarnation, s.PeersTotal)
	printRunning(w, s.Transports, now)
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	names := make([]string, 0, len(s.Stats))
	for name := range s.Stats {
		names = append(names, name)
	}
	slices.Sort(names)
	rows := (len(names) + 2) / 3
	for i := range rows {
		for j := i; j < len(names); j += rows {
			fmt.Fprintf(table, "%s\t%d\t", strings.ReplaceAll(names[j], "_", " "), s.Stats[names[j]])
		}
		fmt.Fprintln(table)
	}
	_ = table.Flush()
}

func printRunning(w io.Writer, list []admin.Transport, now time.Time) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TRANSPORT\tSTATE\tINSTANCE\tPID\tVERSION\tRESTARTS\tDROPPED\tLAST ERROR")
	for _, t := range list {
		fmt.Fprintf(table, "%s\t%s for %v\t%d\t%d\t%s\t%d\t%d\t%s\n", t.Name, t.State, now.Sub(t.Since).Round(time.Second),
			t.Instance, t.PID, printableName(t.Version), t.Restarts, t.Dropped, clipped(t.LastError))
	}
	_ = table.Flush()
}

func newPluginRestart() *cobra.Command {
	c := &cobra.Command{
		Use:   "restart TRANSPORT",
		Short: "Replace a running node's plugin by a new instance, without losing a notification",
		Long: `Has a running node, or an engine within a program, start a new instance of a
transport's plugin, move the traffic over, and stop the old one. Of a plugin that
is quarantined or waits to be restarted an instance is started at once.`,
		Args: rangeArgs(1, 1, "a transport's name, as `hawser status` lists it"),
	}
	socket, o := socketFlag(c), outputFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := dialNode(cmd.Context(), *socket)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), restartTimeout)
		defer cancel()
		t, err := n.Restart(ctx, args[0])
		if err != nil {
			return adminError(cmd.Context(), n, err)
		}
		if *o == outputJSON {
			return document(cmd.OutOrStdout(), t)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %s, instance %d, pid %d\n", t.Name, t.State, t.Instance, t.PID)
		return nil
	}
	return c
}

// runningJSON is an instance of a plugin that runs in some node.
type runningJSON struct {
	Socket    string `json:"socket"`
	Node      string `json:"node"`
	Transport string `json:"transport"`
	State     string `json:"state"`
	Instance  uint64 `json:"instance,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Restarts  uint64 `json:"restarts"`
	wire      string
}

// unanswered is the state of what nobody tells.
const unanswered = "does not answer"

// running asks the named node, or all that this user runs here, at once, for
// their transports. Without a name, a node that does not answer is listed as
// that.
func running(ctx context.Context, socket string) ([]runningJSON, error) {
	sockets := []string{socket}
	if socket == "" {
		sockets = admin.Discover()
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	lists, errs := make([][]runningJSON, len(sockets)), make([]error, len(sockets))
	var asked sync.WaitGroup
	for i, path := range sockets {
		asked.Go(func() { lists[i], errs[i] = runningAt(ctx, path) })
	}
	asked.Wait()
	for i, err := range errs {
		switch {
		case err != nil && socket != "":
			return nil, err
		case err != nil:
			lists[i] = []runningJSON{{Socket: sockets[i], State: unanswered}}
		}
	}
	return slices.Concat(lists...), nil
}

// runningAt asks one node.
func runningAt(ctx context.Context, path string) (list []runningJSON, err error) {
	c := admin.Dial(path)
	n, err := c.Node(ctx)
	if err != nil {
		return nil, adminError(ctx, c, err)
	}
	transports, err := c.Transports(ctx)
	for _, t := range transports {
		list = append(list, runningJSON{path, n.Name, t.Name, t.State, t.Instance, t.PID, t.Restarts, t.Wire})
	}
	return list, adminError(ctx, c, err)
}

func printInstances(w io.Writer, list []runningJSON) {
	if len(list) == 0 {
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nNODE\tTRANSPORT\tSTATE\tINSTANCE\tPID\tRESTARTS")
	for _, r := range list {
		if r.State == unanswered {
			fmt.Fprintf(table, "%s\t-\t%s\t-\t-\t-\n", r.Socket, r.State)
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\n", printableName(r.Node), r.Transport, r.State, r.Instance, r.PID, r.Restarts)
	}
	_ = table.Flush()
}
