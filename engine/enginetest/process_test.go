package enginetest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/enginetest"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// stopped is two engines of which one's process can be stopped: alone, or with
// its transports.
type stopped struct {
	enginetest.Process
	network *enginetest.Network
	fabric  *sdktest.Fabric
	a, b    *engine.Engine // a runs in the process
}

func withStopped(t *testing.T, f func(t *testing.T, s *stopped)) {
	synctest.Test(t, func(t *testing.T) {
		s := &stopped{network: enginetest.NewNetwork(), fabric: sdktest.NewFabric(sdktest.FabricOptions{})}
		longest := enginetest.LongestDeadline(10 * time.Second)
		s.a = open(t, s.network, s.fabric, "a:1", s.In(), longest)
		s.b = open(t, s.network, s.fabric, "b:1", longest)
		f(t, s)
		for _, e := range []*engine.Engine{s.a, s.b} {
			if err := e.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}

// freeze stops the process for so long, as its peers see it, too.
func (s *stopped) freeze(d time.Duration, plugins bool) {
	s.Stop()
	s.network.Freeze("a:1", true)
	if plugins {
		s.fabric.Freeze("a:1")
	}
	time.Sleep(d)
	s.fabric.Thaw("a:1")
	s.network.Freeze("a:1", false)
	s.Resume()
	synctest.Wait()
}

func notify(t *testing.T, e *engine.Engine, to string) *engine.Delivery {
	t.Helper()
	d, err := e.Notify(context.Background(), to, engine.Notification{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A call whose time ran out while the process did not run says nothing of the
// peer; one that ran out before does.
func TestAStoppedEngineMarksNobody(t *testing.T) {
	for _, plugins := range []bool{false, true} {
		withStopped(t, func(t *testing.T, s *stopped) {
			s.network.Delay("b:1", "a:1", time.Second) // the answer comes while it is stopped
			d := notify(t, s.a, "b:1")
			time.Sleep(500 * time.Millisecond)
			s.freeze(40*time.Second, plugins)
			s.network.Delay("b:1", "a:1", 0)
			if err := d.Wait(t.Context()); err != nil {
				t.Errorf("sent before the freeze: %v", err)
			}
			if err := send(t, s.a, "b:1", 5*time.Second); err != nil {
				t.Errorf("after the freeze: %v", err)
			}
			if s := s.a.Stats(); s.Marks != 0 || s.Freezes == 0 || s.Voided == 0 {
				t.Errorf("%d marks, %d freezes, %d verdicts voided", s.Marks, s.Freezes, s.Voided)
			}
		})
	}
}

// A sender's session outlives a freeze of its receiver, however long: what the
// sender said meanwhile was not read.
func TestASessionOutlivesAFreezeOfItsReceiver(t *testing.T) {
	withStopped(t, func(t *testing.T, s *stopped) {
		if err := send(t, s.b, "a:1", time.Second); err != nil {
			t.Fatal(err)
		}
		s.Stop()
		s.network.Freeze("a:1", true)
		s.fabric.Cut("b:1", "a:1", "")
		var last *engine.Delivery
		for range 12 { // longer than twice the longest deadline, and never silent
			time.Sleep(2 * time.Second)
			last = notify(t, s.b, "a:1")
		}
		s.network.Freeze("a:1", false)
		s.Resume()
		synctest.Wait() // it looked for silent sessions before it read anything
		s.fabric.Heal("b:1", "a:1", "")
		if err := last.Wait(t.Context()); err != nil {
			t.Errorf("sent while the receiver was stopped: %v", err)
		}
		if n := s.a.Stats().Sessions; n != 1 {
			t.Errorf("%d sessions", n)
		}
	})
}

// A stopped engine does nothing at all, and then everything.
func TestAStoppedEngineStandsStill(t *testing.T) {
	withStopped(t, func(t *testing.T, s *stopped) {
		if err := send(t, s.a, "b:1", time.Second); err != nil {
			t.Fatal(err)
		}
		s.fabric.CutBoth("a:1", "b:1", "")
		d := notify(t, s.a, "b:1")
		synctest.Wait()
		before := s.a.Stats()
		s.Stop()
		time.Sleep(5 * time.Second)
		after := s.a.Stats()
		if before.Timeouts != after.Timeouts || before.CreditRequests != after.CreditRequests || before.Sent != after.Sent {
			t.Errorf("stopped, it went from %+v to %+v", before, after)
		}
		s.fabric.HealBoth("a:1", "b:1", "")
		s.Resume()
		if err := d.Wait(t.Context()); err != nil {
			t.Errorf("after the freeze: %v", err)
		}
	})
}
