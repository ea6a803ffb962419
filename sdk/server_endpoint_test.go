package sdk

import (
	"testing"

	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// modes is a carrier that notes how records are sent.
type modes struct {
	link.Carrier
	seen []link.Mode
}

func (m *modes) Send(recs []link.Record, mode link.Mode) (int, error) {
	m.seen = append(m.seen, mode)
	return len(recs), nil
}

// TestOutcomesOfOpsDoNotWait: they are written by whoever tells them, those of
// frames may wait for company.
func TestOutcomesOfOpsDoNotWait(t *testing.T) {
	for use, want := range map[Use]link.Mode{UseFrames: link.More | link.Wait, UseMemory: link.Wait} {
		m := &modes{}
		s := &server{carrier: m, linkOpen: make(chan struct{})}
		close(s.linkOpen)
		s.mu.endpoints = map[uint64]*servedEndpoint{}
		e, err := s.newEndpoint(t.Context(), use, 1, 0)
		if err != nil {
			t.Fatal(err)
		}
		e.Completed([]Completion{{ID: 1, Outcome: Done}, {ID: 2, Outcome: Done}})
		if len(m.seen) != 1 || m.seen[0] != want {
			t.Errorf("%v: sent with %v, want one with %v", use, m.seen, want)
		}
	}
}
