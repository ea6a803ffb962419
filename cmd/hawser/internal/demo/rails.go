package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

const (
	rdma = "rdma"
	// rdmaFaulty is the binary, without its prefix, that does rdma's work with
	// faults in its verbs, and speaks to them and to the simulated fabric.
	rdmaFaulty = "rdma-faulty"
	// What its environment variables are called.
	simVariable, faultsVariable = "HAWSER_RDMA_SIM", "HAWSER_RDMA_FAULTS"
	// railCount is how many rails each host has, in the lab and simulated.
	railCount = 2
)

// tool finds the binary that speaks to faults and the simulated fabric.
func (o Options) tool() (string, error) {
	found, err := engine.FindPlugins(engine.Config{
		Plugins:    engine.PluginsConfig{Dir: o.PluginsDir, Lock: o.Lock},
		Transports: []engine.TransportConfig{{Name: rdma, Plugin: rdmaFaulty}},
	})
	for _, p := range found {
		if err == nil && p.Name == rdmaFaulty && len(p.Transports) > 0 {
			return p.Path, p.Fault()
		}
	}
	return "", errors.Join(err, errors.New("hawser-rdma-faulty is not there: packages leave it out"))
}

// prepareRDMA makes the simulated hosts, and says where faults are asked for.
func prepareRDMA(s *stage) (err error) {
	if len(s.o.Hosts) > 0 {
		return nil // their own devices, and a folder that is there
	}
	if s.dir, err = os.MkdirTemp("", "hwd"); err != nil || !s.o.Simulate {
		return err
	}
	for i, node := range []string{senderName, receiverName, bystander} {
		_, err := s.use(context.Background(), senderName, "sim", s.dir, "host", node,
			fmt.Sprintf("10.77.0.%d", i+1), fmt.Sprintf("10.77.1.%d", i+1))
		if err != nil {
			return err
		}
	}
	return nil
}

// use runs the tool on a node's host.
func (s *stage) use(ctx context.Context, node string, args ...string) (string, error) {
	tool, err := s.o.tool()
	if err != nil {
		return "", err
	}
	return s.o.hostOf(node).Run(ctx, append([]string{tool}, args...)...)
}

// setupRDMA is a node's configuration. Its rows' plugins may be faulty ones.
func setupRDMA(s *stage, node string, x *lab.Setup) {
	env := map[string]string{}
	if s.o.Simulate {
		env[simVariable] = filepath.Join(s.dir, node+".json")
	}
	if s.row.plugin != "" {
		env[faultsVariable] = s.faultsOf(node)
		x.Plugins = map[string]string{rdma: s.row.plugin}
	}
	x.Env = map[string]map[string]string{rdma: env}
	x.PauseSecs = 1 // a path that carries nothing; the default is longer than a row
}

// faultsOf is the socket of a node's faulty plugin, on its host.
func (s *stage) faultsOf(node string) string {
	dir := s.dir
	if len(s.o.Hosts) > 0 {
		dir = "/tmp/lab"
	}
	return filepath.Join(dir, node+".faults")
}

// verbs asks a node's faulty plugin for something.
func (s *stage) verbs(ctx context.Context, node, what string) (string, error) {
	out, err := s.use(ctx, node, "ctl", s.faultsOf(node), what)
	return strings.Join(strings.Fields(out), " "), err
}

// rail takes a node's rail down, or up again.
func (s *stage) rail(ctx context.Context, node string, rail int, up bool) error {
	word := map[bool]string{true: "up", false: "down"}[up]
	var err error
	if s.o.Simulate {
		_, err = s.use(ctx, node, "sim", s.dir, "port-"+word, node, fmt.Sprint(rail))
	} else {
		_, err = s.o.hostOf(node).Run(ctx, "ip", "link", "set", fmt.Sprintf("eth%d", rail), word)
	}
	return err
}

// rails takes all of them down, or up.
func (s *stage) rails(ctx context.Context, node string, up bool) (err error) {
	for rail := range railCount {
		err = errors.Join(err, s.rail(ctx, node, rail, up))
	}
	return err
}

// heal takes all rails of a node up, however a fault has ended: the next row
// has the same hosts.
func (s *stage) heal(node string) {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout*s.o.slow())
	defer cancel()
	err := s.rails(ctx, node, true)
	s.require(err == nil, "%s's rails are not up again: %v", node, err)
}

// needRails: rails of this machine itself are not cut.
func needRails(o Options) string {
	if o.Simulate || len(o.Hosts) > 0 {
		return ""
	}
	return "it cuts rails, and leaves those of this machine alone: --simulate, or --hosts"
}

// needSimulation is for what no real device does on demand.
func needSimulation(o Options) string {
	if o.Simulate {
		return ""
	}
	return "it needs --simulate"
}

// onRail says whether a path is one over this rail at both ends.
func onRail(p engine.PathStatus, rail int) bool {
	a, b, ok := strings.Cut(p.Path, "-")
	prefix := fmt.Sprintf("10.77.%d.", rail)
	return p.Transport == rdma && ok && strings.HasPrefix(a, prefix) && strings.HasPrefix(b, prefix)
}

// carrying waits until notifications are under way at the sender over a path
// that f holds of.
func (s *stage) carrying(ctx context.Context, what string, f func(engine.PathStatus) bool) error {
	return waitFor(ctx, backTimeout*s.o.slow(), what, func() (bool, error) {
		paths, err := s.sender.paths(ctx)
		return slices.ContainsFunc(paths, func(p engine.PathStatus) bool {
			return p.Usable() && p.Pending > 0 && f(p)
		}), err
	})
}

// paths are those of a node to all of its peers.
func (n *peer) paths(ctx context.Context) (list []engine.PathStatus, err error) {
	err = n.Call(ctx, "paths", nil, &list)
	return list, err
}

// waitFor polls until f holds.
func waitFor(ctx context.Context, limit time.Duration, what string, f func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		sleep(ctx, pollEvery)
		if ctx.Err() != nil {
			return fmt.Errorf("waited in vain for %s: %w", what, ctx.Err())
		}
	}
}
