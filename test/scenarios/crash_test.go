//go:build linux

package scenarios

import (
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// holdings are what must not grow.
type holdings struct{ goroutines, descriptors, memory, files int }

func holdingsNow(t *testing.T) holdings {
	t.Helper()
	return holdings{runtime.NumGoroutine(), descriptors(t), resident(os.Getpid()), files(runs)}
}

// Scenario 62, with engines: crashes under load leave nothing behind.
func TestScenario62CrashCycles(t *testing.T) {
	cycles := 20
	if testing.Short() {
		cycles = 4
	}
	hardy := func(name string) engine.Config {
		cfg := config(name)
		cfg.Plugins.CrashBudget = 1000
		cfg.Plugins.RestartBackoffMS, cfg.Plugins.MaxRestartBackoffMS = 10, 20
		return cfg
	}
	sender, receiver := open(t, hardy("sender")), open(t, hardy("receiver"))
	series := map[string]int{}
	crash := func(prefix string, n int) {
		l := sender.stream(t, receiver.address(), prefix)
		l.more(t, &receiver.inbox, 20)
		for i := range n {
			victim := []*node{sender, receiver}[i%2]
			s := victim.transport(t, "tcp")
			hold(t, s.PID).kill(t)
			victim.replaced(t, "tcp", s.Instance)
			l.more(t, &receiver.inbox, 20)
		}
		series[prefix] = l.end(t)
	}
	crash("warm-up", 4)
	var before holdings
	settle := func() {
		debug.FreeOSMemory()
		before = holdingsNow(t)
	}
	settle()
	crash("load", cycles)
	var now holdings
	flat := func() bool {
		now = holdingsNow(t)
		return now.goroutines <= before.goroutines+10 && now.descriptors <= before.descriptors+10 && now.files <= before.files
	}
	for end := time.Now().Add(patience); !flat(); time.Sleep(pollEvery) {
		if time.Now().After(end) {
			t.Errorf("goroutines, descriptors or files have grown: %+v, before %+v", now, before)
			break
		}
	}
	debug.FreeOSMemory()
	now = holdingsNow(t)
	t.Logf("before %+v, after %d crashes %+v", before, cycles, now)
	if now.memory > before.memory+48<<20 {
		t.Errorf("%d MiB of memory, before %d", now.memory>>20, before.memory>>20)
	}
	receiver.inbox.expect(t, series)
	if r := sender.transport(t, "tcp").Restarts + receiver.transport(t, "tcp").Restarts; r != uint64(4+cycles) {
		t.Errorf("%d restarts after %d kills", r, 4+cycles)
	}
	for _, n := range []*node{sender, receiver} {
		for _, s := range n.Transports() {
			if s.State != "up" || s.Abandoned != 0 {
				t.Errorf("%s: %+v", n.Self().Name, s)
			}
		}
	}
}
