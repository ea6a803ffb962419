package pluginhost

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hawser-transport/hawser/sdk"
)

// mover is a fake with all abilities of a mover, whatever it describes.
type mover struct {
	*fake
	sdk.Mover
	quick error         // of the first Close
	last  chan struct{} // a second one waits for it
}

func (m *mover) Close(ctx context.Context) error {
	_ = m.fake.Close(ctx)
	if m.closes == 1 {
		return m.quick
	}
	<-m.last
	return nil
}

func supervise(t *testing.T, m *mover) (*Supervisor, *recorder) {
	t.Helper()
	rec := newRecorder()
	s := New(Spec{Name: "t", InProcess: func() sdk.Transport { return m }}, Options{}, rec)
	s.Start()
	if err := s.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, rec
}

func (m *mover) Describe() sdk.Description { return m.fake.Describe() }
func (m *mover) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	return m.fake.Configure(ctx, cfg)
}

func TestAbilitiesAreThoseDescribed(t *testing.T) {
	for _, features := range [][]sdk.Feature{nil, {sdk.FeatureNotify}, {sdk.FeatureMove}, {sdk.FeatureMove, sdk.FeatureNotify}} {
		synctest.Test(t, func(t *testing.T) {
			m := &mover{fake: newFake()}
			m.desc.Features = features
			s, rec := supervise(t, m)
			inst := rec.insts[1]
			if got, want := inst.Mover != nil, m.desc.Has(sdk.FeatureMove); got != want {
				t.Errorf("%v: a mover: %t", features, got)
			}
			if got, want := inst.Notifier != nil, m.desc.Has(sdk.FeatureNotify); got != want {
				t.Errorf("%v: a notifier: %t", features, got)
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestImpossibleMoveLimits(t *testing.T) {
	d := newFake().desc
	d.Move = sdk.MoveLimits{Parallel: 9}
	if err := checkDescription(d); err != nil {
		t.Errorf("limits of what is not described: %v", err)
	}
	d.Features = []sdk.Feature{sdk.FeatureMove}
	if err := checkDescription(d); !errors.Is(err, sdk.InvalidArgument) {
		t.Error(err)
	}
}

// An instance in this process is gone once its Close says so: one that was
// given no time is asked again.
func TestAnInstanceHereIsGoneWhenItIsClosed(t *testing.T) {
	for _, quick := range []error{nil, sdk.Errorf(sdk.DeadlineExceeded, "no time")} {
		synctest.Test(t, func(t *testing.T) {
			m := &mover{fake: newFake(), quick: quick, last: make(chan struct{})}
			s, rec := supervise(t, m)
			isGone := func() bool {
				synctest.Wait()
				select {
				case <-rec.insts[1].Gone:
					return true
				default:
					return false
				}
			}
			if isGone() {
				t.Error("gone while it is up")
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if isGone() != (quick == nil) {
				t.Errorf("gone after Close returned %v: %t", quick, quick != nil)
			}
			close(m.last)
			if !isGone() {
				t.Error("not gone in the end")
			}
		})
	}
}
