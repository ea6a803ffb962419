package pluginhost

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// A request forgives what was before: the next crash is the first.
func TestARequestPardons(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{CrashBudget: 2}, func(t *testing.T, s *Supervisor, rec *recorder) {
		for n := 1; n <= 2; n++ {
			rec.wait(t, "up "+itoa(n), 1)
			st.last().crash(errors.New("boom"))
		}
		rec.wait(t, "quarantined: plugin exited", 1)
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		st.last().crash(errors.New("boom"))
		rec.wait(t, "up 4", 1)
		if took := time.Since(start); took > time.Second {
			t.Errorf("restarted after %v", took)
		}
	})
}

// A start that takes too long while this process hardly runs is not counted.
func TestAStartOverAFreezeIsVoid(t *testing.T) {
	st := &stage{make: func(int) *fake {
		f := newFake()
		f.configure = func(ctx context.Context, _ sdk.Config) (sdk.Setup, error) {
			<-ctx.Done()
			return sdk.Setup{}, ctx.Err()
		}
		return f
	}}
	for _, frozen := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			froze := &freeze.Detector{}
			if frozen {
				froze.Tick(time.Now())
				froze.Tick(time.Now().Add(time.Minute)) // it does not run until then
			}
			rec := newRecorder()
			s := New(st.spec(), Options{Freeze: froze, CrashBudget: 1}, rec)
			s.Start()
			time.Sleep(55 * time.Second)
			if state := s.Status().State; (state == Quarantined) == frozen {
				t.Errorf("frozen %v, and it is %s", frozen, state)
			}
			if err := s.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigureHasADeadline(t *testing.T) {
	st := &stage{make: func(int) *fake {
		f := newFake()
		f.configure = func(ctx context.Context, _ sdk.Config) (sdk.Setup, error) {
			<-ctx.Done()
			return sdk.Setup{}, ctx.Err()
		}
		return f
	}}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, _ *recorder) {
		start := time.Now()
		if err := s.Ready(t.Context()); !errors.Is(err, sdk.DeadlineExceeded) || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
