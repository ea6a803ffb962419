package remote

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// A call whose caller sets no deadline has one, and ends with the plugin.
func TestEveryCallHasADeadline(t *testing.T) {
	tr := newTransport(context.Background(), "x", nil)
	ctx, cancel := tr.callContext(context.Background(), time.Minute)
	defer cancel()
	if at, ok := ctx.Deadline(); !ok || time.Until(at) > time.Minute {
		t.Errorf("the deadline is %v, %v", at, ok)
	}
	own, cancelOwn := context.WithTimeout(context.Background(), time.Hour)
	defer cancelOwn()
	longer, cancelLonger := tr.callContext(own, time.Minute)
	defer cancelLonger()
	want, _ := own.Deadline()
	if at, _ := longer.Deadline(); !at.Equal(want) {
		t.Errorf("a caller's own deadline became %v", at)
	}
	tr.cancel()
	<-ctx.Done()
	<-longer.Done()
}

// heard is a handler that notes what it is told.
type heard struct {
	results []sdk.Completion
	frames  int
	ends    int
}

func (h *heard) Completed(cs []sdk.Completion) { h.results = append(h.results, cs...) }
func (h *heard) Received(frames [][]byte)      { h.frames += len(frames) }
func (h *heard) Ended(error)                   { h.ends++ }

func hearing(t *testing.T) (*Transport, *endpoint, *heard) {
	t.Helper()
	tr, _, _ := dispatching(t, 1)
	h := &heard{}
	e, err := tr.newEndpoint(tr.link(), sdk.UseFrames, h)
	if err == nil {
		err = e.settle("test")
	}
	if err != nil {
		t.Fatal(err)
	}
	return tr, e, h
}

func TestNothingFollowsTheEnd(t *testing.T) {
	_, e, h := hearing(t)
	e.end(sdk.Closed, false)
	e.end(sdk.Closed, false)
	e.frames = [][]byte{{1}}
	e.results = []sdk.Completion{{ID: 1}}
	e.last = sdk.Closed
	e.deliver()
	if h.ends != 1 || h.frames != 0 || len(h.results) != 0 {
		t.Errorf("%d ends, then %d frames and %d outcomes", h.ends, h.frames, len(h.results))
	}
}

func TestAnOutcomesCodeIsOfTheClosedSet(t *testing.T) {
	tr, e, h := hearing(t)
	if _, err := e.Send([]sdk.Frame{{ID: 1}, {ID: 2}, {ID: 3}}, false); err != nil {
		t.Fatal(err)
	}
	d := &dispatcher{t: tr}
	err := d.handle([]link.Record{{Type: link.Complete, Endpoint: e.id, Payload: completions(
		link.Run{First: 1, Count: 1, Outcome: uint8(sdk.Unknown), Code: 0},
		link.Run{First: 2, Count: 1, Outcome: uint8(sdk.Unknown), Code: uint8(sdk.Unavailable)},
		link.Run{First: 3, Count: 1, Outcome: uint8(sdk.Done), Code: uint8(sdk.Unavailable)},
	)}})
	if err != nil || len(h.results) != 3 {
		t.Fatalf("%v, %v", err, h.results)
	}
	for i, want := range []sdk.Code{sdk.Refused, sdk.Unavailable, 0} {
		if got := h.results[i].Code; got != want {
			t.Errorf("outcome %d has code %d, want %d", i+1, got, want)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	configure := func(n int) error {
		_, err := setupFromPB(&pb.ConfigureResponse{Attributes: map[string]string{"a": strings.Repeat("x", n)}})
		return err
	}
	for name, c := range map[string]struct {
		err error
		ok  bool
	}{
		"attributes":          {configure(100), true},
		"too many attributes": {configure(1 << 20), false},
	} {
		if (c.err == nil) != c.ok {
			t.Errorf("%s: %v", name, c.err)
		}
	}
}
