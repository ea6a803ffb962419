package benchnode

import (
	"context"
	"fmt"
	"slices"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// MoveOptions say what to measure of transfers.
type MoveOptions struct {
	// Setup is both nodes' configuration; it runs one transport.
	Setup lab.Setup
	// Writes lists the kinds of ops, true for writes, and Sizes how many bytes
	// one moves.
	Writes []bool
	Sizes  []int
	// Window is how many ops are under way, and Bytes about how many bytes
	// each measurement moves.
	Window, Bytes int
	// PlainFirst has the plain program go before the transfers it is compared
	// with.
	PlainFirst bool
	// NodeArgs follow the hidden command's name.
	NodeArgs []string
}

// Moved is what one round measured of one kind and size: by transfers, and by a
// plain program that copies the same bytes over one TCP connection.
type Moved struct {
	Op       string     `json:"op"`
	Size     int        `json:"size"`
	Transfer MoveResult `json:"transfer"`
	Plain    MoveResult `json:"plain"`
	// Ratio is of bytes a second, transfers' of the plain program's.
	Ratio float64 `json:"ratio"`
	// Memory is that of the four processes during the transfers.
	Memory Footprint `json:"memory"`
}

const (
	// oneAtATime is how many ops are measured one at a time, at most.
	oneAtATime = 100
	// mostOps bounds the ops of a measurement of small ones.
	mostOps = 20_000
)

// RunMove starts two fresh nodes, measures each kind and size between them, and
// ends them. What was moved is compared.
func RunMove(ctx context.Context, o MoveOptions) (list []Moved, err error) {
	if err := o.Setup.Check(); err != nil {
		return nil, err
	}
	p := &pair{o: Options{Setup: o.Setup, NodeArgs: o.NodeArgs}}
	defer p.close()
	if err := p.open(ctx); err != nil {
		return nil, err
	}
	total := slices.Max(o.Sizes) * o.Window
	var here, there memoryInfo
	if err := p.a.Call(ctx, "allocate", total, &here); err != nil {
		return nil, err
	}
	if err := p.b.Call(ctx, "allocate", total, &there); err != nil {
		return nil, err
	}
	pids, err := p.pids(ctx)
	if err != nil {
		return nil, err
	}
	seed := uint64(0)
	for _, size := range o.Sizes {
		for _, write := range o.Writes {
			m := Moved{Op: opName(write), Size: size}
			a := moveArgs{
				Peer: p.peer, Address: there.Address, Write: write, Size: size, Window: o.Window,
				Count: max(o.Window, min(o.Bytes/size, mostOps)), OneAtATime: min(oneAtATime, max(1, o.Bytes/size/4)),
			}
			plain := a
			plain.Plain = there.Plain
			turns := []func() error{
				func() error {
					seed++
					stop := watch(pids)
					err := p.move(ctx, a, seed, &m.Transfer)
					m.Memory = stop()
					return err
				},
				func() error { seed++; return p.move(ctx, plain, seed, &m.Plain) },
			}
			if o.PlainFirst {
				slices.Reverse(turns)
			}
			for _, turn := range turns {
				if err := turn(); err != nil {
					return nil, fmt.Errorf("%s of %d bytes: %w", m.Op, size, err)
				}
			}
			m.Ratio = m.Transfer.BytesPerSecond / m.Plain.BytesPerSecond
			list = append(list, m)
		}
	}
	return list, nil
}

// pids are the nodes' and their plugins'.
func (p *pair) pids(ctx context.Context) (list []int, err error) {
	for _, n := range []*lab.Process{p.a, p.b} {
		var up []lab.Transport
		if err := n.Call(ctx, "transports", nil, &up); err != nil {
			return nil, err
		}
		list = append(list, n.PID())
		for _, t := range up {
			list = append(list, t.PID)
		}
	}
	return list, nil
}

func opName(write bool) string {
	if write {
		return "write"
	}
	return "read"
}

// move makes one measurement: both sides' memory differs before, and must not
// afterwards.
func (p *pair) move(ctx context.Context, a moveArgs, seed uint64, result *MoveResult) error {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTimeout, fmt.Errorf("it took longer than %v", roundTimeout))
	defer cancel()
	length := a.Size * a.Window
	for i, n := range []*lab.Process{p.a, p.b} {
		if err := n.Call(ctx, "fill", fillArgs{2*seed + uint64(i), length}, nil); err != nil {
			return err
		}
	}
	if err := p.a.Call(ctx, "move", a, result); err != nil {
		return err
	}
	var sums [2]uint32
	for i, n := range []*lab.Process{p.a, p.b} {
		if err := n.Call(ctx, "sum", length, &sums[i]); err != nil {
			return err
		}
	}
	if sums[0] != sums[1] {
		return fmt.Errorf("what was moved differs: checksums %08x and %08x", sums[0], sums[1])
	}
	return nil
}
