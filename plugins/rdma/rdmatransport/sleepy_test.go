package rdmatransport

import (
	"sync/atomic"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/sdk"
)

// sleepy devices do not wake their poller while they are asked not to: what is
// in the completion queue is found by whoever looks.
type sleepy struct {
	*simverbs.Provider
	asleep atomic.Pointer[chan struct{}]
}

// sleep has the poller sleep until wake is called.
func (s *sleepy) sleep() (wake func()) {
	gate := make(chan struct{})
	s.asleep.Store(&gate)
	return func() {
		s.asleep.Store(nil)
		close(gate)
	}
}

func (s *sleepy) Open(name string) (verbs.Device, error) {
	d, err := s.Provider.Open(name)
	return &sleepyDevice{d, s}, err
}

type sleepyDevice struct {
	verbs.Device
	s *sleepy
}

func (d *sleepyDevice) CreateChannel() (verbs.Channel, error) {
	c, err := d.Device.CreateChannel()
	return &sleepyChannel{c, d.s}, err
}

func (d *sleepyDevice) CreateCQ(entries int, c verbs.Channel) (verbs.CQ, error) {
	return d.Device.CreateCQ(entries, c.(*sleepyChannel).Channel)
}

type sleepyChannel struct {
	verbs.Channel
	s *sleepy
}

func (c *sleepyChannel) Wait() error {
	err := c.Channel.Wait()
	if gate := c.s.asleep.Load(); gate != nil {
		<-*gate
	}
	return err
}

// What lands after an endpoint has begun to end, while the poller does not run,
// reaches the handler: the queue is looked at once more when the queue pair is
// empty.
func TestWhatLandsWhileAnEndpointRetires(t *testing.T) {
	f := newFabric(t)
	a := f.node(t, patient)
	o := f.options()
	p, err := simverbs.New(o)
	must(t, err)
	s := &sleepy{Provider: p}
	b := &node{nil, &simulated{Transport: New(s), t: t, provider: p, host: o.Host, settings: `{"retire_timeout_ms": 500, "endpoint": {"send_timeout": 17}}`}}
	b.Node = rigtest.Start(t, b.simulated, sdk.Config{Instance: 1})
	const late = 5
	for generation := uint64(1); ; generation++ {
		if generation == 20 {
			t.Fatal("nothing landed in time")
		}
		x, y := join(t, a, b, generation)
		talk(t, x, y, 5)
		until(t, "quiet", func() bool { q := f.qp(t, b, y.e); return q.Posted+q.Waiting == 0 })
		wake := s.sleep()
		must(t, f.HoldCompletions(a.host, "sim0", true)) // x does not hear the bye
		y.Close()
		until(t, "the bye", func() bool {
			y.e.mu.Lock()
			defer y.e.mu.Unlock()
			return y.e.controls&(1<<bye) != 0 || y.e.broken
		})
		for range late {
			must(t, x.Send([]byte("late")))
		}
		landed := 0 // the bye has a completion, too
		until(t, "the landing", func() bool {
			q := f.qp(t, b, y.e)
			landed = q.Waiting - 1
			return landed == late || q.State != verbs.RTS
		})
		y.WaitEnded()
		received, _, _ := y.Counts()
		wake()
		must(t, f.HoldCompletions(a.host, "sim0", false))
		x.WaitEnded()
		if landed == late {
			if received != 5+late {
				t.Errorf("%d frames came of %d that landed", received, 5+late)
			}
			break
		}
	}
}
