package rigtest

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// processOf returns the one process of a binary.
func processOf(t testing.TB, binary string) int {
	t.Helper()
	var found []int
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if exe, err := os.Readlink(link); err == nil && exe == binary {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		t.Fatalf("processes of %s: %v", binary, found)
	}
	return found[0]
}

// mortal is a transport whose Close fails once it is dead.
type mortal struct {
	mover
	dead bool
}

type mover interface {
	sdk.Transport
	sdk.Mover
}

func (m *mortal) Close(ctx context.Context) error {
	if err := m.mover.Close(ctx); !m.dead {
		return err
	}
	return nil
}

// MoveFaults freezes, and then kills, the provider's process in the middle of
// writes. Its peer's end of it is a fence at once, and what had no outcome then
// has none; frozen, the provider may still write, until its own end has ended.
func MoveFaults(t *testing.T, binary string) {
	const size = 1 << 20
	provider := &mortal{mover: sdktest.Binary(t, binary).(mover)}
	b := Start(t, provider, sdk.Config{Instance: 2})
	pid := processOf(t, binary)
	a := Start(t, sdktest.Binary(t, binary), sdk.Config{Instance: 1})
	here, there := Register(t, a, size, true), Register(t, b, size, true)
	there.Announce(t, a)
	stop := func(generation uint64) (s *Sender, ra, rb *Recorder, passive sdk.Endpoint) {
		ra, rb = NewRecorder(t), NewRecorder(t)
		active, passive := ConnectMemory(t, a, b, 0, generation, ra, rb)
		s = &Sender{Endpoint: active, Recorder: ra}
		load(t, s, sdk.Write, here, there, size)
		ra.WaitDone(1)
		if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		load(t, s, sdk.Write, here, there, size) // what is behind is under way for good
		return s, ra, rb, passive
	}

	s, ra, rb, passive := stop(1)
	s.Endpoint.Close()
	if err := ra.WaitEnded(); sdk.CodeOf(err) != sdk.Closed || s.open() == 0 {
		t.Errorf("frozen: ended with %v, %d ops open", err, s.open())
	}
	if err := a.Mover().Deregister(Context(t), here.Region.Capability); err != nil {
		t.Errorf("frozen: the region here is in use: %v", err)
	}
	if err := unix.Kill(pid, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	passive.Close()
	rb.WaitEnded()
	there.fill(t, 0xAA)

	here = Register(t, a, size, true)
	there.stays(t, 0xAA, "after the fence")
	s, ra, _, _ = stop(2)
	provider.dead = true
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := ra.WaitEnded(); sdk.CodeOf(err) != sdk.Unavailable || s.open() == 0 {
		t.Errorf("killed: ended with %v, %d ops open", err, s.open())
	}
	if err := a.Mover().Deregister(Context(t), here.Region.Capability); err != nil {
		t.Errorf("killed: the region here is in use: %v", err)
	}
	there.fill(t, 0xBB)
	there.stays(t, 0xBB, "after the process's end")
}
