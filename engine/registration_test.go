//go:build linux

package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// declining is a transport that takes no region, once it may answer.
type declining struct {
	sdk.Mover
	answers      chan struct{}
	deregistered atomic.Int64
}

func (d *declining) Register(_ context.Context, r sdk.Region) (sdk.Attributes, error) {
	<-d.answers
	_ = r.File.Close()
	return nil, Busy
}

func (d *declining) Deregister(context.Context, Capability) error {
	d.deregistered.Add(1)
	return nil
}

func (m *memory) only(inst *pluginhost.Instance) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.movers = []*pluginhost.Instance{inst}
}

// A region that is refused gives its file back; a transport that has just come up
// gets a copy or none, and never one of what has the number by then. This is for
// the race detector.
func TestARefusedRegionsFile(t *testing.T) {
	moving(t, func(w *world) {
		a := w.open("a:1")
		defer w.giveUp()
		defer w.shut(a)
		r := w.region(a, 100, RegionOptions{})
		done := make(chan struct{})
		go func() {
			defer close(done)
			x, err := r.export()
			if err == nil {
				err = x.File.Close()
			}
			if err != nil && !errors.Is(err, Closed) {
				t.Error(err)
			}
		}()
		a.memory.closeFile(r)
		<-done
		if r.file != nil {
			t.Error("it is kept")
		}
	})
}

// A region that makes the descriptor too large is refused before anybody can have
// read of it: its memory is the application's again.
func TestWhatIsTooLargeIsNotPublished(t *testing.T) {
	moving(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		m := &a.memory
		m.mu.Lock()
		m.tombstones = make([]Capability, maxDescriptor/35)
		version := m.version
		m.mu.Unlock()
		if _, err := a.AllocateHost(100, RegionOptions{}); !errors.Is(err, TooLarge) {
			t.Errorf("%v", err)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.version != version || len(m.regions) != 0 {
			t.Errorf("version %d was published after %d; %d regions are left", m.version, version, len(m.regions))
		}
		m.tombstones = nil
	})
}

// A registration that ends after the engine's close leaves no goroutine of the
// engine's behind.
func TestARegistrationOutlastsTheEngine(t *testing.T) {
	moving(t, func(w *world) {
		a := w.open("a:1")
		d := &declining{answers: make(chan struct{})}
		a.memory.only(&pluginhost.Instance{Mover: d, Description: sdk.Description{Name: "x"}, Gone: make(chan struct{})})
		done := make(chan error)
		go func() {
			_, err := a.AllocateHost(100, RegionOptions{})
			done <- err
		}()
		synctest.Wait()
		w.shut(a)
		close(d.answers)
		if err := <-done; !errors.Is(err, Busy) {
			t.Errorf("%v", err)
		}
		synctest.Wait()
		if n := d.deregistered.Load(); n != 0 {
			t.Errorf("%d calls after Close", n)
		}
	})
}

// A region that is registered while the engine closes is not published any more:
// what is exported has been recalled by then.
func TestNothingIsPublishedWhileClosing(t *testing.T) {
	moving(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		r := w.region(a, 100, RegionOptions{Private: true})
		defer w.giveUp()
		r.opts.Private = false
		a.closing.Store(true)
		if err := a.memory.publish(r); !errors.Is(err, Closed) || r.published != 0 {
			t.Errorf("%v", err)
		}
		a.closing.Store(false)
	})
}
