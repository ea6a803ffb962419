//go:build linux

package scenarios

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

type hostSetup struct{ Bin, Runs, To string }

type hostUp struct{ Plugins []int }

// host sends without end, until it is killed.
func host(d *dialogue) error {
	var s hostSetup
	if err := d.hear(&s); err != nil {
		return err
	}
	ctx := context.Background()
	e, err := engine.Open(ctx, engine.Config{
		Node: engine.NodeConfig{Name: "host"}, Plugins: engine.PluginsConfig{Dir: s.Bin, RunDir: s.Runs},
		Transports: tcpFirst(),
	})
	if err != nil {
		return err
	}
	if err := d.say(hostUp{pluginPIDs(e)}); err != nil {
		return err
	}
	for i := 0; ; i++ {
		delivery, err := e.Notify(ctx, s.To, message("host", i))
		if err != nil {
			return err
		}
		if i%100 == 0 {
			_ = delivery.Wait(ctx)
		}
	}
}

// Scenario 63.
func TestScenario63SIGKILLOfTheHost(t *testing.T) {
	dir, err := os.MkdirTemp(root, "k")
	if err != nil {
		t.Fatal(err)
	}
	receiver := open(t, config("receiver"))
	c := startChild(t, "host")
	c.tell(t, hostSetup{bin, dir, receiver.address()})
	var up hostUp
	c.ask(t, &up)
	until(t, "the host to send", func() bool { return receiver.inbox.count() > 100 })
	var plugins []held
	for _, pid := range up.Plugins {
		p := hold(t, pid)
		defer p.release()
		plugins = append(plugins, p)
	}
	if len(plugins) != 2 {
		t.Fatalf("%d plugins", len(plugins))
	}
	old, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(old) == 0 {
		t.Fatal("the host has no run directory")
	}

	if n := len(processes(root)); n < 5 { // the host, its plugins and the receiver's
		t.Errorf("only %d processes are seen: what is left at the end would not be", n)
	}

	killed := time.Now()
	hold(t, c.Process.Pid).kill(t)
	until(t, "the plugins to be gone", func() bool { return plugins[0].gone() && plugins[1].gone() })
	// Within a second where the machine is not busy: it is logged.
	if took := time.Since(killed); took > 10*time.Second {
		t.Errorf("the plugins outlived their host by %v", took)
	}
	t.Logf("plugins gone %v after their host", lap(killed))
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) == 0 {
		t.Error("the killed host left no run directory: there is nothing to clean")
	}

	// The next start cleans up, its own end leaves nothing.
	cfg := config("next")
	cfg.Plugins.RunDir = dir
	next := open(t, cfg)
	for _, path := range old {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("still there after the next start: %s", path)
		}
	}
	if err := next.shut(); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
