//go:build linux

package scenarios

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// load is a stream of notifications while something happens.
type load struct {
	prefix string
	sent   atomic.Int64
	stop   chan struct{}
	done   chan struct{}
	all    []*engine.Delivery // once done is closed
	err    error
}

// loadPace is a burst every few milliseconds: about 1000 a second.
const (
	loadBurst = 5
	loadEvery = 5 * time.Millisecond
)

// stream sends until it is ended.
func (n *node) stream(t *testing.T, to, prefix string) *load {
	t.Helper()
	l := &load{prefix: prefix, stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(l.done)
		tick := time.NewTicker(loadEvery)
		defer tick.Stop()
		for {
			for range loadBurst {
				var d *engine.Delivery
				if d, l.err = n.Notify(context.Background(), to, message(prefix, len(l.all))); l.err != nil {
					return
				}
				l.all = append(l.all, d)
				l.sent.Add(1)
			}
			select {
			case <-tick.C:
			case <-l.stop:
				return
			}
		}
	}()
	t.Cleanup(l.halt)
	return l
}

func (l *load) halt() {
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	<-l.done
}

// more waits until some more were sent and have arrived.
func (l *load) more(t *testing.T, at *tally, count int) {
	t.Helper()
	sent, arrived := l.sent.Load()+int64(count), at.count()+count
	until(t, "the stream to go on", func() bool { return l.sent.Load() >= sent && at.count() >= arrived })
}

// end stops the stream, waits until all are acknowledged, and returns how many
// there were.
func (l *load) end(t *testing.T) int {
	t.Helper()
	l.halt()
	if l.err != nil {
		t.Errorf("%s: after %d: %v", l.prefix, len(l.all), l.err)
	}
	ctx := briefly(t)
	for i, d := range l.all {
		if err := d.Wait(ctx); err != nil {
			t.Errorf("%s %d: %v", l.prefix, i, err)
			break
		}
	}
	return len(l.all)
}
