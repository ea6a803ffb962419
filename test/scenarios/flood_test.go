//go:build linux

package scenarios

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

const (
	floodCount = 2400     // notifications of each sender
	floodSize  = 60 << 10 // of every second one
	floodHold  = 2 * time.Second
	// floodOutbox is what a sender holds, and floodQueue what the receiver does.
	floodOutbox, floodQueue = 32 << 20, 1 << 20
	floodFrames             = 128
	// floodGrowth is how much more memory than before the receiver's side may
	// take: far less than the 64 MiB and more that wait at the senders. The
	// race detector multiplies what its process takes.
	floodGrowth = 40 << 20
)

type sinkSetup struct{ Bin, Runs string }

type sinkUp struct {
	Address string
	Plugins []int
}

type sinkReport struct {
	Distinct, Total, MostQueued int
	Dropped, Duplicates         uint64
}

// sink is the receiver: it reads nothing until it is told to, and then as many
// as it is told.
func sink(d *dialogue) error {
	var s sinkSetup
	if err := d.hear(&s); err != nil {
		return err
	}
	ctx := context.Background()
	e, err := engine.Open(ctx, engine.Config{
		Node:    engine.NodeConfig{Name: "sink"},
		Receive: engine.ReceiveConfig{Frames: floodFrames, Bytes: floodQueue},
		// No more than the queue takes.
		Notification: engine.NotificationConfig{MaxPayloadBytes: floodQueue},
		Plugins:      engine.PluginsConfig{Dir: s.Bin, RunDir: s.Runs},
		Transports:   tcpFirst(),
	})
	if err != nil {
		return err
	}
	if err := d.say(sinkUp{e.Self().Address, pluginPIDs(e)}); err != nil {
		return err
	}
	var count int
	if err := d.hear(&count); err != nil {
		return err
	}
	r := sinkReport{MostQueued: e.Stats().Queued}
	seen := map[string]bool{}
	for len(seen) < count {
		ctx, cancel := context.WithTimeout(ctx, patience)
		got, err := e.Receive(ctx)
		cancel()
		if err != nil {
			break // the report says what is missing
		}
		r.MostQueued = max(r.MostQueued, e.Stats().Queued)
		seen[got.Name] = true
		r.Total++
	}
	// Not before the senders know: a goodbye overtakes acks. Close returns when
	// nothing can arrive any more; what is left then was doubled.
	if err := d.hear(new(string)); err != nil {
		return err
	}
	closing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := e.Close(closing); err != nil {
		return err
	}
	for {
		if _, err := e.Receive(ctx); err != nil {
			break
		}
		r.Total++
	}
	r.Distinct, r.Dropped, r.Duplicates = len(seen), e.Stats().DroppedFull, e.Stats().Duplicates
	return d.say(r)
}

type floodSetup struct{ Bin, Runs, Name, To string }

// floodReport is said at the first Backpressure, and at the end.
type floodReport struct {
	Backpressure, Sent, Acknowledged int
	Fault                            string
}

// flooder sends as fast as it can.
func flooder(d *dialogue) error {
	var s floodSetup
	if err := d.hear(&s); err != nil {
		return err
	}
	ctx := context.Background()
	e, err := engine.Open(ctx, engine.Config{
		Node:         engine.NodeConfig{Name: s.Name},
		Notification: engine.NotificationConfig{SlotWaitMS: 200},
		Outbox:       engine.OutboxConfig{Bytes: floodOutbox, TotalBytes: floodOutbox},
		Plugins:      engine.PluginsConfig{Dir: s.Bin, RunDir: s.Runs},
		Transports:   tcpFirst(),
	})
	if err != nil {
		return err
	}
	var r floodReport
	var all []*engine.Delivery
	for len(all) < floodCount {
		n := engine.Notification{Name: fmt.Sprintf("%s/%d", s.Name, len(all))}
		if len(all)%2 == 0 {
			n.Payload = make([]byte, floodSize)
		}
		delivery, err := e.Notify(ctx, s.To, n)
		switch {
		case errors.Is(err, engine.Backpressure):
			if r.Backpressure++; r.Backpressure == 1 {
				r.Sent = len(all)
				if err := d.say(r); err != nil {
					return err
				}
			}
		case err != nil:
			return err
		default:
			all = append(all, delivery)
		}
	}
	for _, delivery := range all {
		if err := delivery.Wait(ctx); err == nil {
			r.Acknowledged++
		} else if r.Fault == "" {
			r.Fault = err.Error()
		}
	}
	r.Sent = len(all)
	if err := d.say(r); err != nil {
		return err
	}
	closing, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return e.Close(closing)
}

// Scenario 11.
func TestScenario11FloodWithoutAReader(t *testing.T) {
	receiver := startChild(t, "sink")
	receiver.tell(t, sinkSetup{bin, runs})
	var up sinkUp
	receiver.ask(t, &up)
	watched := append(up.Plugins, receiver.Process.Pid)
	memory := func() (sum int) {
		for _, pid := range watched {
			sum += resident(pid)
		}
		return sum
	}
	before := memory()

	var senders []*child
	for i := range 2 {
		c := startChild(t, "flooder")
		c.tell(t, floodSetup{bin, runs, fmt.Sprintf("flooder-%d", i), up.Address})
		senders = append(senders, c)
	}
	stopped := make(chan error, len(senders))
	for _, c := range senders {
		go func() { stopped <- c.words.Decode(new(floodReport)) }()
	}
	// From the first one's Backpressure on, and for some time after the last
	// one's, nothing moves.
	most, waiting := before, len(senders)
	var held <-chan time.Time
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for reading := false; !reading; {
		select {
		case <-tick.C:
			most = max(most, memory())
		case err := <-stopped:
			if err != nil {
				t.Fatalf("a sender: %v", err)
			}
			if waiting--; waiting == 0 {
				held = time.After(floodHold)
			}
		case <-held:
			reading = true
		}
	}
	receiver.tell(t, len(senders)*floodCount)
	t.Logf("receiver's side: %d MiB before, at most %d MiB while both senders were full", before>>20, most>>20)
	if most > before+floodGrowth {
		t.Errorf("the receiver's side grew from %d to %d MiB", before>>20, most>>20)
	}

	for _, c := range senders {
		var r floodReport
		c.ask(t, &r)
		if r.Backpressure < 2 || r.Sent != floodCount || r.Acknowledged != floodCount {
			t.Errorf("a sender: %+v", r)
		}
	}
	receiver.tell(t, "end")
	var r sinkReport
	receiver.ask(t, &r)
	if want := len(senders) * floodCount; r.Distinct != want || r.Total != want {
		t.Errorf("%d different ones and %d in all arrived, want %d", r.Distinct, r.Total, want)
	}
	if r.MostQueued == 0 || r.MostQueued > floodFrames {
		t.Errorf("%d in the queue, the limit is %d", r.MostQueued, floodFrames)
	}
}
