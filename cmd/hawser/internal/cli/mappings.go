package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-transport/hawser/engine/admin"
)

func newMappings() *cobra.Command {
	return group("mappings", "Memory as it is used between a running node and its peers", newMappingsList(), newMappingsRetire())
}

func newMappingsList() *cobra.Command {
	c := &cobra.Command{
		Use:   "list",
		Short: "List peers' regions that are in use here, and own ones that peers still hold",
		Long: `Asks a running node, or an engine within a program, over its admin socket.

As consumer, the engine lists what its transports know of a peer's memory:
  used        transfers are under way
  idle        a transport may have it mapped; it goes by itself
  unresolved  a transfer ended with an unknown outcome, and the peer has not
              confirmed yet that nothing touches its memory any more
  leaving     it is being given up

As provider, it lists its own regions that are being closed, one line for each
peer that has not said that it has given the region up:
  held        Region.Close waits for that peer; see hawser mappings retire`,
		Args: noArgs,
	}
	socket, o := socketFlag(c), outputFlag(c)
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return ask(cmd, *socket, func(ctx context.Context, n *admin.Client) error {
			list, err := n.Mappings(ctx)
			if err != nil {
				return err
			}
			if *o == outputJSON {
				return document(cmd.OutOrStdout(), list)
			}
			printMappings(cmd.OutOrStdout(), list, time.Now())
			return nil
		})
	}
	return c
}

func printMappings(w io.Writer, list []admin.Mapping, now time.Time) {
	if len(list) == 0 {
		fmt.Fprintln(w, "no mappings")
		return
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "AS\tPEER\tINCARNATION\tREGION\tADDRESS\tBYTES\tSTATE\tLEASES\tTRANSPORTS\tHEARD")
	for _, m := range list {
		heard, bytes, transports := "-", "-", "-"
		if !m.Heard.IsZero() {
			heard = ago(now, m.Heard)
		}
		if m.Length > 0 {
			bytes = fmt.Sprint(m.Length)
		}
		if len(m.Transports) > 0 {
			transports = printableName(strings.Join(m.Transports, ","))
		}
		fmt.Fprintf(table, "%s\t%s\t%.8s\t%s\t%#x\t%s\t%s\t%d\t%s\t%s\n", m.Side, printableName(m.Peer), m.Incarnation,
			m.Capability, m.Address, bytes, m.State, m.Leases, transports, heard)
	}
	_ = table.Flush()
}

func newMappingsRetire() *cobra.Command {
	c := &cobra.Command{
		Use:   "retire PEER",
		Short: "Say that a peer is gone, so that nothing waits for its mappings",
		Long: `Tells a running node, or an engine within a program, over its admin socket that a
peer is gone. PEER is its address, or at least the first eight digits of its
incarnation, as ` + "`hawser mappings list`" + ` shows them: an incarnation is safer,
since another process may have the address by now.

Regions of the engine that the peer holds are released, and Region.Close returns.
What the engine itself uses of the peer's memory is given up, unless a transfer
is under way.

Make sure first that the peer's process, and every process of its transports, is
gone, or that its machine is off. One that is alive can go on reading and writing
memory that is used for something else by then.`,
		Args: rangeArgs(1, 1, "a peer, as `hawser mappings list` shows it"),
	}
	socket, o := socketFlag(c), outputFlag(c)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return ask(cmd, *socket, func(ctx context.Context, n *admin.Client) error {
			r, err := n.RetireMappings(ctx, args[0])
			if err != nil {
				return err
			}
			if *o == outputJSON {
				return document(cmd.OutOrStdout(), r)
			}
			printRetired(cmd.OutOrStdout(), args[0], r)
			return nil
		})
	}
	return c
}

func printRetired(w io.Writer, peer string, r admin.Retired) {
	fmt.Fprintf(w, "%s: %d mappings retired\n", printableName(peer), r.Mappings)
	if r.Unresolved > 0 {
		fmt.Fprintf(w, "%d ops to it are unresolved: their memory here stays in use until it answers or is known to be dead, or this engine is closed\n", r.Unresolved)
	}
}

// printSegments lists what peers publish of their memory, as far as anybody has
// read it.
func printSegments(w io.Writer, peers []admin.Peer) {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	some := false
	for _, p := range peers {
		s := p.Segment
		if s == nil {
			continue
		}
		if !some {
			some = true
			fmt.Fprintln(table, "\nSEGMENT OF\tADDRESS\tVERSION\tREGIONS\tHANDLES\tOPS\tENDPOINTS")
		}
		version, endpoints := fmt.Sprint(s.Version), "-"
		if s.Latest > s.Version {
			version += fmt.Sprintf(" (latest %d)", s.Latest)
		}
		if len(s.Endpoints) > 0 {
			endpoints = clipped(strings.Join(s.Endpoints, ", "))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\t%d\t%d\t%s\n", printableName(p.Name), printableName(p.Address), version, s.Buffers, s.Opens, s.Ops, endpoints)
	}
	_ = table.Flush()
}
