package demo

import (
	"context"
	"testing"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/enginetest"
	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Each transfer has a cell of its own within the memory.
func TestCells(t *testing.T) {
	for _, count := range []int{400, 401} {
		end := 0
		for i := range count + 1 {
			if !bound(i, count) {
				continue
			}
			if cellAt(i) != end {
				t.Fatalf("of %d, %d begins at %d, and the one before ends at %d", count, i, cellAt(i), end)
			}
			end += cellBytes
		}
		if end > memorySize(count) || bound(count, count) || bound(-1, count) {
			t.Errorf("%d have %d bytes of %d", count, end, memorySize(count))
		}
	}
}

// The receiver tells a notification whose bytes are there from one whose are
// not, or are wrong; and a transfer's failure is that of a notification which
// never left.
func TestTransfers(t *testing.T) {
	const count = 10
	fabric := sdktest.NewFabric(sdktest.FabricOptions{Moves: true})
	a, b, peer := enginetest.Pair(t, func(node string) engine.TransportConfig {
		return engine.TransportConfig{Name: "memory", InProcess: func() sdk.Transport { return fabric.New(node) }}
	})
	in, err := openInbox(b, count)
	if err != nil {
		t.Fatal(err)
	}
	out, err := openOutbox(t.Context(), a, peer, count, sendTimeout)
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if n := name(i, count); in.wrote(n) == bound(i, count) {
			t.Errorf("%s is taken for written: %t", n, in.wrote(n))
		}
	}
	n := engine.Notification{Name: name(4, count)}
	if err := out.send(t.Context(), 4, n); err != nil {
		t.Fatal(err)
	}
	r, err := b.Receive(t.Context())
	if err != nil || r.Name != n.Name || !in.wrote(r.Name) || in.wrote(name(2, count)) {
		t.Errorf("%+v, %v", r, err)
	}
	in.region.Bytes()[cellAt(4)+cellBytes-1]++
	if in.wrote(n.Name) {
		t.Error("a wrong byte is not seen")
	}

	s := &sender{journal: newJournal()}
	s.transferEnded(1, nil)
	s.transferEnded(2, &engine.TransferError{Failed: 1, Ops: 1, Errors: []*engine.OpError{{Code: engine.OutcomeUnknown, Cause: engine.PluginExited}}})
	s.transferEnded(3, &engine.TransferError{Ops: 1, Notifications: []error{&engine.DeliveryError{Code: engine.DeliveryUnknown, Cause: engine.PeerRestarted}}})
	s.transferEnded(4, &engine.TransferError{Ops: 1, Notifications: []error{engine.PeerRestarted}})
	s.transferEnded(5, context.DeadlineExceeded) // no receiver
	for i, want := range []string{"", "not sent", "delivery unknown", "not sent", "not sent"} {
		if x := s.journal.pending.Ended[i]; x.Code != want || x.Acked != (want == "") {
			t.Errorf("%+v, want %q", x, want)
		}
	}
}
