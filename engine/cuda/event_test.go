//go:build linux

package cuda

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	driver "github.com/hawser-transport/hawser/internal/cuda"
)

// TestEvent: the application's event is what another process waits for.
func TestEvent(t *testing.T) {
	l := newLab(t)
	gpu := len(l.app) - 1
	var e, plain driver.Event
	l.do(gpu, func(c driver.Context) (err error) {
		if e, err = c.CreateEvent(true); err != nil {
			return err
		}
		plain, err = c.CreateEvent(false)
		return err
	})
	t.Cleanup(func() {
		l.do(gpu, func(c driver.Context) error { return errors.Join(c.DestroyEvent(e), c.DestroyEvent(plain)) })
	})
	h, err := l.gpus.ExportEvent(gpu, uintptr(e))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.gpus.ExportEvent(gpu, uintptr(plain)); !errors.Is(err, engine.InvalidArgument) || !strings.Contains(err.Error(), "CU_EVENT_INTERPROCESS") {
		t.Errorf("an event without the flag: %v", err)
	}
	if _, err := l.gpus.ExportEvent(len(l.app), uintptr(e)); !errors.Is(err, engine.InvalidArgument) {
		t.Errorf("a GPU that is not there: %v", err)
	}
	if l.sim == nil {
		return // a process cannot open its own events; kvtransfer's plugins are others
	}
	l.copied(gpu, func(c driver.Context, s driver.Stream) error {
		if err := errors.Join(c.(driver.Busier).Busy(uint64(time.Hour), s), c.Record(e, s)); err != nil {
			return err
		}
		other := l.process()
		dev, err := other.Open(0)
		if err != nil {
			return err
		}
		return errors.Join(dev.Do(func(c driver.Context) error {
			opened, err := c.OpenEvent(*h)
			if err != nil {
				return err
			}
			done, err := c.QueryEvent(opened)
			if done {
				t.Error("an event of work that takes an hour is done")
			}
			return errors.Join(err, c.DestroyEvent(opened))
		}), dev.Close())
	})
}
