package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/enginetest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// figure is something that is measured once, beside nothing else.
type figure struct{ what, aim, value, how string }

// standing measures what has no contender: peers that are silent, and engines
// that do nothing.
func standing(s settings) ([]figure, error) {
	var all []figure
	for _, f := range []func(settings) ([]figure, error){markedPeer, resumedPeer, idleEngine, idlePeers} {
		list, err := f(s)
		if err != nil {
			return all, err
		}
		for _, x := range list {
			fmt.Fprintf(os.Stderr, "%s: %s\n", x.what, x.value)
		}
		all = append(all, list...)
	}
	return all, nil
}

func standingReport(all []figure) string {
	var b strings.Builder
	b.WriteString("\n| silent peers and idle engines | aim | measured | how |\n|---|---|---|---|\n")
	for _, f := range all {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", f.what, f.aim, f.value, f.how)
	}
	return b.String()
}

const standingTimeout = 2 * time.Second

// openStanding opens an engine with both plugins, whose calls time out soon.
func openStanding(bin, name string) (*engine.Engine, error) {
	no := false
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	ms := int(standingTimeout.Milliseconds())
	return engine.Open(ctx, engine.Config{
		Node:         engine.NodeConfig{Name: name},
		Plugins:      engine.PluginsConfig{Dir: bin},
		Notification: engine.NotificationConfig{RPCFallback: &no},
		RPC:          engine.RPCConfig{RequestTimeoutMS: ms, BootstrapTimeoutMS: ms},
		Transports:   []engine.TransportConfig{{Name: "tcp"}, {Name: "rpcfallback"}},
	})
}

// deliver sends one notification and waits until it has ended.
func deliver(e *engine.Engine, to string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	d, err := e.Notify(ctx, to, engine.Notification{Name: "data"})
	if err != nil {
		return err
	}
	return d.Wait(ctx)
}

// markedPeer is what a call costs after one has found the peer silent.
func markedPeer(s settings) ([]figure, error) {
	peer, err := self("hawser", s.bin, "tcp", "")
	if err != nil {
		return nil, err
	}
	defer peer.stop()
	e, err := openStanding(s.bin, "sender")
	if err != nil {
		return nil, err
	}
	defer shut(e)
	if err := peer.freeze(); err != nil {
		return nil, err
	}
	defer func() { _ = peer.cmd.Process.Signal(syscall.SIGCONT) }()
	began := time.Now()
	if err := deliver(e, peer.address); !errors.Is(err, engine.NotSent) {
		return nil, fmt.Errorf("the first call to a frozen peer: %v", err)
	}
	once := time.Since(began)
	const calls = 10_000
	h := hdrhistogram.New(1, int64(10*time.Second), 3)
	for range calls {
		began := time.Now()
		if err := deliver(e, peer.address); !errors.Is(err, engine.NotSent) {
			return nil, fmt.Errorf("a call to a marked peer: %v", err)
		}
		_ = h.RecordValue(int64(time.Since(began)))
	}
	return []figure{{
		"second call to a marked peer, p99", "under 10 ms", fmt.Sprintf("%.0f us", float64(h.ValueAtQuantile(99))/1e3),
		fmt.Sprintf("peer stopped by SIGSTOP and never met; the first call failed after %.2f s (timeout %v), then %d more", once.Seconds(), standingTimeout, calls),
	}}, nil
}

// resumedPeer is how long a peer that was frozen takes to be of use again.
func resumedPeer(s settings) ([]figure, error) {
	peer, err := self("hawser", s.bin, "tcp", "")
	if err != nil {
		return nil, err
	}
	defer peer.stop()
	e, err := openStanding(s.bin, "sender")
	if err != nil {
		return nil, err
	}
	defer shut(e)
	const times, frozen = 5, 5 * time.Second
	var took []float64
	for range times {
		if err := deliver(e, peer.address); err != nil {
			return nil, err
		}
		if err := peer.freeze(); err != nil {
			return nil, err
		}
		d, err := e.Notify(context.Background(), peer.address, engine.Notification{Name: "data"})
		time.Sleep(frozen)
		if err == nil && d.Ended() != engine.Pending {
			err = fmt.Errorf("a notification to a frozen peer has ended: %v, %v", d.Ended(), d.Err())
		}
		resumed := time.Now()
		if err := errors.Join(err, peer.cmd.Process.Signal(syscall.SIGCONT)); err != nil {
			return nil, err
		}
		if err := d.Wait(context.Background()); err != nil {
			return nil, err
		}
		took = append(took, float64(time.Since(resumed).Microseconds())/1e3)
	}
	slices.Sort(took)
	return []figure{{
		"resume to first delivery", "under 1500 ms", fmt.Sprintf("%.1f ms (%.1f to %.1f)", median(took), took[0], took[times-1]),
		fmt.Sprintf("connected peer stopped for %v, SIGCONT to the acknowledgement of what was sent meanwhile; median of %d", frozen, times),
	}}, nil
}

// freeze stops the peer's process, not its plugins, and waits until it stands.
func (c *child) freeze() error {
	if err := c.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for range 1000 {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		if err != nil {
			return err
		}
		if _, rest, _ := strings.Cut(string(b), ") "); strings.HasPrefix(rest, "T") {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("the peer's process does not stop")
}

// idleEngine is what an engine with its plugins costs that does nothing.
func idleEngine(s settings) ([]figure, error) {
	e, err := openStanding(s.bin, "idle")
	if err != nil {
		return nil, err
	}
	defer shut(e)
	pids := []int{os.Getpid()}
	for _, t := range e.Transports() {
		if t.PID == 0 {
			return nil, fmt.Errorf("%s has no process: %v", t.Name, t.LastError)
		}
		pids = append(pids, t.PID)
	}
	time.Sleep(time.Second) // what starting left to do
	const span = 5 * time.Second
	before, err := cpuTime(pids)
	if err != nil {
		return nil, err
	}
	time.Sleep(span)
	after, err := cpuTime(pids)
	if err != nil {
		return nil, err
	}
	return []figure{{
		"idle engine with two plugins, CPU", "under 1% of a core",
		fmt.Sprintf("%.2f%% of a core", 100*(after-before).Seconds()/span.Seconds()),
		fmt.Sprintf("%d processes over %v, to the nanosecond by the scheduler", len(pids), span),
	}}, nil
}

// cpuTime is what the threads of processes have run.
func cpuTime(pids []int) (sum time.Duration, err error) {
	for _, pid := range pids {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			return 0, err
		}
		for _, t := range tasks {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/schedstat", pid, t.Name()))
			if err != nil {
				continue // it has ended
			}
			ran, _, _ := strings.Cut(string(b), " ")
			n, err := strconv.ParseInt(ran, 10, 64)
			if err != nil {
				return 0, err
			}
			sum += time.Duration(n)
		}
	}
	return sum, nil
}

// idlePeers is what a connected peer costs that says nothing: an engine holds
// the connections to many others of the same process, over transports and a
// control plane in memory. Both ends are counted, as their sum.
func idlePeers(s settings) ([]figure, error) {
	n, f := enginetest.NewNetwork(), sdktest.NewFabric(sdktest.FabricOptions{})
	open := func(address string) (*engine.Engine, error) {
		no := false
		return engine.Open(context.Background(), engine.Config{
			Node:         engine.NodeConfig{Name: address},
			Notification: engine.NotificationConfig{RPCFallback: &no},
			Transports:   []engine.TransportConfig{{Name: "memory", InProcess: func() sdk.Transport { return f.New(address) }}},
		}, n.At(address))
	}
	all := make([]*engine.Engine, s.peers+1)
	defer func() {
		var closes sync.WaitGroup
		for _, e := range all {
			if e != nil {
				closes.Go(func() { shut(e) })
			}
		}
		closes.Wait()
	}()
	for i := range all {
		var err error
		if all[i], err = open(fmt.Sprintf("peer-%d:1", i)); err != nil {
			return nil, err
		}
	}
	before := held()
	for i := range s.peers {
		if err := deliver(all[0], fmt.Sprintf("peer-%d:1", i+1)); err != nil {
			return nil, err
		}
	}
	for _, e := range all[1:] {
		if _, err := e.Receive(context.Background()); err != nil {
			return nil, err
		}
	}
	time.Sleep(2 * time.Second)
	after := held()
	each := func(was, is int) float64 { return float64(is-was) / float64(s.peers) }
	how := fmt.Sprintf("one engine connected to %d others in one process, transports and control plane in memory; both ends together", s.peers)
	return []figure{
		{"idle connected peer, memory", "", fmt.Sprintf("%.1f KB", each(before.bytes, after.bytes)/1e3), how + "; heap and stacks"},
		{"idle connected peer, goroutines", "", fmt.Sprintf("%.1f, beside %.1f of the transport in memory",
			each(before.goroutines, after.goroutines), each(before.fabric, after.fabric)), how},
	}, nil
}

// holding is what this process holds.
type holding struct{ bytes, goroutines, fabric int }

func held() holding {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	h := holding{bytes: int(m.HeapAlloc + m.StackInuse)}
	// Groups of goroutines: "N @ ..." and the functions in which they are.
	var b bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	for group := range strings.SplitSeq(b.String(), "\n\n") {
		for line := range strings.Lines(group) {
			count, _, ok := strings.Cut(line, " @ ")
			if n, err := strconv.Atoi(count); ok && err == nil {
				if strings.Contains(group, "sdktest.") {
					h.fabric += n
				} else {
					h.goroutines += n
				}
			}
		}
	}
	return h
}
