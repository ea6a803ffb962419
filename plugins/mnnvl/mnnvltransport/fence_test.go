//go:build linux

package mnnvltransport

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// TestOtherInstance: what another instance of the peer's plugin has published is
// not used over an endpoint to this one.
func TestOtherInstance(t *testing.T) {
	l := newLab(t)
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	here, there := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), b.register(t, l.on(t, 0, 4096), true, 1<<41, 1)
	w := connect(t, a, b)
	there.Instance = 3
	a.announce(t, there)
	if c := w.do(opOf(sdk.Read, here, there, 1)); c.Outcome != sdk.NotPosted || c.Code != sdk.StaleCapability {
		t.Errorf("%v (%v)", c.Outcome, c.Code)
	}
	there.Instance, there.Version = 2, 2
	a.announce(t, there)
	w.must(opOf(sdk.Read, here, there, 1))
}

// held is a lab whose copies stand still until resume.
func held(t *testing.T) (l *lab, hold, resume func()) {
	t.Helper()
	l = newLab(t, func(*simcuda.Options) {})
	check := func(f func(string) error) func() {
		return func() {
			if err := f(l.options.Dir); err != nil {
				t.Error(err)
			}
		}
	}
	resume = sync.OnceFunc(check(simcuda.Resume))
	t.Cleanup(resume)
	return l, check(simcuda.Hold), resume
}

// TestWithdrawWaits: while a copy is under way its memory stays mapped, here and
// there, and Withdraw, Deregister and Ended wait.
func TestWithdrawWaits(t *testing.T) {
	l, hold, resume := held(t)
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	here, there := a.register(t, l.on(t, 0, 4096), true, 1<<40, 1), b.register(t, l.on(t, 1, 4096), true, 1<<41, 1)
	a.announce(t, there)
	host := a.register(t, sdktest.HostMemory(t, 4096), true, 1<<43, 1)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, 1))
	hold()
	c, plain := w.post(opOf(sdk.Read, here, there, 4096)), w.post(opOf(sdk.Read, host, there, 4096))
	short := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	eventually(t, func() error {
		if n := a.Transport.(*Transport).devices[0].cache.Stats().Leases; n != 3 {
			return fmt.Errorf("%d leases: the copies are not under way", n)
		}
		return nil
	})
	if err := a.mover.Withdraw(short(), b.Inc, there.Capability); !errors.Is(err, sdk.Busy) {
		t.Errorf("Withdraw: %v, want %v", err, sdk.Busy)
	}
	for _, r := range []publishedRegion{here, host} {
		if err := a.mover.Deregister(short(), r.Capability); !errors.Is(err, sdk.Busy) {
			t.Errorf("Deregister of %v memory: %v, want %v", r.Kind, err, sdk.Busy)
		}
	}
	w.ep.Close()
	select {
	case err := <-w.ended:
		t.Errorf("it has ended (%v), and its copy has not", err)
	case <-short().Done():
	}
	resume()
	for _, c := range []<-chan sdk.Completion{c, plain} {
		if o := <-c; o.Outcome != sdk.Done {
			t.Errorf("%v (%v)", o.Outcome, o.Code)
		}
	}
	if err := <-w.ended; !errors.Is(err, sdk.Closed) {
		t.Error(err)
	}
	if err := a.mover.Withdraw(rigtest.Context(t), b.Inc, there.Capability); err != nil {
		t.Error(err)
	}
	here.deregister(t)
}

// TestPostedIsBounded: what a device was not given needs no fence: it is refused
// when its endpoint is closed.
func TestPostedIsBounded(t *testing.T) {
	l, hold, resume := held(t)
	a, b := l.start(t, l.transport(t), 1), l.start(t, l.transport(t), 2)
	size := limits.MaxOp
	here, there := a.register(t, l.on(t, 0, size), true, 1<<40, 1), b.register(t, l.on(t, 1, size), true, 1<<41, 1)
	a.announce(t, there)
	w := connect(t, a, b)
	w.must(opOf(sdk.Read, here, there, 1))
	hold()
	var waiting []<-chan sdk.Completion
	for range limits.InflightBytes / size {
		waiting = append(waiting, w.post(opOf(sdk.Read, here, there, uint64(size))))
	}
	driver := a.Transport.(*Transport).driver.(*simcuda.Driver)
	eventually(t, func() error { // as many as there may be are posted, with an event each
		if n := driver.Counts().Events; n < maxPosted/size {
			return fmt.Errorf("%d copies are posted", n)
		}
		return nil
	})
	w.ep.Close()
	resume()
	done, refused := 0, 0
	for _, c := range waiting {
		switch o := <-c; {
		case o.Outcome == sdk.Done:
			done++
		case o.Outcome == sdk.NotPosted && o.Code == sdk.Closed:
			refused++
		}
	}
	if done != maxPosted/size || refused != len(waiting)-done {
		t.Errorf("%d are done, %d refused, of %d", done, refused, len(waiting))
	}
	<-w.ended
}
