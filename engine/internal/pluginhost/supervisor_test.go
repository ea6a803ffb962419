package pluginhost

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

// supervised runs a test in fake time with a started supervisor.
func supervised(t *testing.T, spec Spec, o Options, f func(t *testing.T, s *Supervisor, rec *recorder)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := New(spec, o, rec)
		s.Start()
		defer func() {
			if err := s.Stop(context.Background()); err != nil {
				t.Errorf("Stop: %v", err)
			}
			if st := s.Status(); st.State != Stopped {
				t.Errorf("state after Stop is %s", st.State)
			}
		}()
		f(t, s, rec)
	})
}

func expect(t *testing.T, rec *recorder, want ...string) {
	t.Helper()
	if got := rec.list(); !slices.Equal(got, want) {
		t.Fatalf("the observer was told\n%q, want\n%q", got, want)
	}
}

func TestStartAndStop(t *testing.T) {
	st := &stage{}
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		inc := sdk.Incarnation{1, 2, 3}
		s := New(st.spec(), Options{Incarnation: inc, NextInstance: func() uint64 { return 77 }}, rec)
		s.Start()
		if err := s.Ready(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := st.last().cfg
		if got.Instance != 77 || got.Incarnation != inc || string(got.Settings) != "{}" || got.Log == nil {
			t.Fatalf("configured with %+v", got)
		}
		if s := s.Status(); s.State != Up || s.Instance != 77 || s.Carrier != "in process" || s.Transport != "fake" {
			t.Fatalf("status %+v", s)
		}
		for range 2 {
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Restart(t.Context()); !errors.Is(err, sdk.Closed) {
			t.Fatalf("Restart after Stop: %v", err)
		}
		expect(t, rec, "up 77", "down 77")
	})
}

func TestStopWithoutStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New((&stage{}).spec(), Options{}, newRecorder())
		if err := s.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Start()
		if err := s.Ready(t.Context()); !errors.Is(err, sdk.Closed) {
			t.Fatalf("Ready after Stop: %v", err)
		}
	})
}

func TestCrashIsRestarted(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		st.last().crash(errors.New("boom"))
		synctest.Wait()
		if state := s.Status(); state.State != Restarting || !strings.Contains(state.LastError.Error(), "boom") {
			t.Fatalf("status %+v", state)
		}
		start := time.Now()
		rec.wait(t, "up 2", 1)
		if took := time.Since(start); took < 100*time.Millisecond || took > 200*time.Millisecond {
			t.Fatalf("restarted after %v", took)
		}
		if st.actors[0].closes != 1 {
			t.Fatal("the crashed transport was not closed")
		}
		expect(t, rec, "up 1", "down 1: plugin exited", "up 2")
	})
}

func TestCrashBudgetQuarantines(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		crash := func(n int) {
			rec.wait(t, "up "+itoa(n), 1)
			st.last().crash(errors.New("boom"))
		}
		for n := 1; n <= 5; n++ {
			crash(n)
		}
		rec.wait(t, "quarantined: plugin exited", 1)
		if state := s.Status(); state.State != Quarantined || state.Restarts != 4 {
			t.Fatalf("status %+v", state)
		}
		at := time.Now()
		crash(6)
		if waited := time.Since(at); waited != 5*time.Minute {
			t.Fatalf("tried again after %v", waited)
		}
		// On probation: once is enough.
		rec.wait(t, "quarantined: plugin exited", 2)
		at = time.Now()
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(at); waited != 0 || s.Status().State != Up {
			t.Fatalf("state %s after %v", s.Status().State, waited)
		}
		// A request pardons everything.
		crash(7)
		rec.wait(t, "up 8", 1)
	})
}

func TestGoodConductAfterQuarantineIsPardoned(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{CrashBudget: 1}, func(t *testing.T, s *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		st.last().crash(nil)
		rec.wait(t, "quarantined: plugin exited", 1)
		s.policy.budget = 2
		rec.wait(t, "up 2", 1)
		time.Sleep(time.Minute)
		st.last().crash(nil)
		rec.wait(t, "up 3", 1)
	})
}

func TestStartFailures(t *testing.T) {
	for _, c := range []struct {
		name  string
		make  func(f *fake)
		want  []string // what the observer is told within ten seconds
		first string
	}{
		{"no device", func(f *fake) {
			f.configure = func(context.Context, sdk.Config) (sdk.Setup, error) {
				return sdk.Setup{}, sdk.Errorf(sdk.Unsupported, "no RDMA device: load rdma_rxe")
			}
		}, []string{"unsupported: unsupported"}, "transport t: no RDMA device"},
		{"configure hangs", func(f *fake) {
			f.configure = func(ctx context.Context, _ sdk.Config) (sdk.Setup, error) {
				<-ctx.Done()
				return sdk.Setup{}, ctx.Err()
			}
		}, nil, "transport t: not configured within 10s"},
		{"dies while configuring", func(f *fake) {
			f.configure = func(context.Context, sdk.Config) (sdk.Setup, error) {
				f.crash(errors.New("segmentation fault"))
				synctest.Wait()
				return sdk.Setup{}, errors.New("connection lost")
			}
		}, []string{"quarantined: plugin exited"}, "while configuring: segmentation fault"},
		{"fails again and again", func(f *fake) {
			f.configure = func(context.Context, sdk.Config) (sdk.Setup, error) {
				return sdk.Setup{}, errors.New("no")
			}
		}, []string{"quarantined: unavailable"}, "transport t: no"},
		{"other contract", func(f *fake) { f.desc.Contract = 99 },
			[]string{"quarantined: invalid argument"}, "version 99 of the transport contract, this engine runs version 1"},
		{"bad name", func(f *fake) { f.desc.Name = strings.Repeat("X", 1000) },
			[]string{"quarantined: invalid argument"}, "describes itself as"},
		{"impossible limits", func(f *fake) { f.desc.Limits.MaxFrame = -1 },
			[]string{"quarantined: invalid argument"}, "impossible limits"},
		{"publishes too much", func(f *fake) {
			f.configure = func(context.Context, sdk.Config) (sdk.Setup, error) {
				return sdk.Setup{Attributes: sdk.Attributes{"a": strings.Repeat("x", 17<<10)}}, nil
			}
		}, []string{"quarantined: invalid argument"}, "publishes too much"},
		{"bad schema", func(f *fake) { f.desc.ConfigSchema = json.RawMessage(`{"type":7}`) },
			[]string{"quarantined: invalid argument"}, "schema cannot be used"},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := &stage{make: func(int) *fake {
				f := newFake()
				c.make(f)
				return f
			}}
			supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
				err := s.Ready(t.Context())
				if err == nil || !strings.Contains(err.Error(), c.first) {
					t.Fatalf("first start: %v", err)
				}
				if n := strings.Count(err.Error(), "transport t: "); n != 1 {
					t.Fatalf("the transport is named %d times: %v", n, err)
				}
				time.Sleep(10 * time.Second)
				expect(t, rec, c.want...)
				for i, f := range st.actors[:st.count()-1] {
					if f.closes != 1 {
						t.Fatalf("attempt %d was closed %d times", i, f.closes)
					}
				}
			})
		})
	}
}

func TestHungIsKilled(t *testing.T) {
	st := &stage{make: func(n int) *fake {
		f := newFake()
		if n == 1 {
			f.health = hang
		}
		return f
	}}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		start := time.Now()
		rec.wait(t, "up 2", 1)
		if took := time.Since(start); took < 3*time.Second || took > 4*time.Second {
			t.Fatalf("noticed after %v", took)
		}
		if err := s.Status().LastError; !strings.Contains(err.Error(), "hung") {
			t.Fatalf("last error %v", err)
		}
		expect(t, rec, "up 1", "down 1: plugin exited", "up 2")
	})
}

func TestMovingTrafficIsAlive(t *testing.T) {
	st := &stage{make: func(int) *fake {
		f := newFake()
		f.health = hang
		return f
	}}
	supervised(t, st.spec(), Options{}, func(t *testing.T, _ *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		for range 60 {
			st.last().move()
			time.Sleep(time.Second)
		}
		expect(t, rec, "up 1")
		rec.wait(t, "down 1: plugin exited", 1)
	})
}

func TestHealthVerdictIsVoidAfterAFreeze(t *testing.T) {
	st := &stage{make: func(int) *fake {
		f := newFake()
		f.health = hang
		return f
	}}
	synctest.Test(t, func(t *testing.T) {
		froze := &freeze.Detector{}
		rec := newRecorder()
		s := New(st.spec(), Options{Freeze: froze}, rec)
		// A tick every 700 ms: this process hardly runs.
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for ctx.Err() == nil {
				froze.Tick(time.Now())
				time.Sleep(700 * time.Millisecond)
			}
		}()
		s.Start()
		time.Sleep(time.Minute)
		expect(t, rec, "up 1")
		cancel()
		<-ended
		ctx, cancel = context.WithCancel(t.Context())
		ended = make(chan struct{})
		go func() {
			defer close(ended)
			froze.Run(ctx)
		}()
		rec.wait(t, "down 1: plugin exited", 1)
		_ = s.Stop(context.Background())
		cancel()
		<-ended
	})
}

func TestReplaceBeside(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		old := st.last()
		rec.drain = func(context.Context, *Instance) {
			if old.drains != 1 {
				t.Error("the observer drains before the transport does")
			}
			if old.closes != 0 {
				t.Error("closed before drained")
			}
			time.Sleep(5 * time.Second)
		}
		if err := s.Replace(t.Context(), st.spec()); err != nil {
			t.Fatal(err)
		}
		expect(t, rec, "up 1", "up 2", "drain 1", "down 1")
		if got := s.Status(); got.Instance != 2 || got.State != Up {
			t.Fatalf("status %+v", got)
		}
	})
}

func TestReplaceOfAnExclusiveDevice(t *testing.T) {
	st := &stage{make: func(n int) *fake {
		f := newFake()
		f.desc.SharedDevice = n == 1
		return f
	}}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		st.last().close = func(context.Context) {
			if st.count() == 2 && !st.last().cfg.Incarnation.IsZero() {
				t.Error("the new instance was configured before the old one had closed")
			}
		}
		if err := s.Replace(t.Context(), st.spec()); err != nil {
			t.Fatal(err)
		}
		expect(t, rec, "up 1", "drain 1", "down 1", "up 2")
	})
}

func TestFailedReplaceKeepsTheOld(t *testing.T) {
	for _, shared := range []bool{true, false} {
		st := &stage{make: func(int) *fake {
			f := newFake()
			f.desc.SharedDevice = shared
			return f
		}}
		bad := &stage{make: func(int) *fake {
			f := newFake()
			f.desc.SharedDevice = shared
			f.configure = func(context.Context, sdk.Config) (sdk.Setup, error) {
				return sdk.Setup{}, sdk.Errorf(sdk.Unsupported, "no device")
			}
			return f
		}}
		supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
			rec.wait(t, "up 1", 1)
			if err := s.Replace(t.Context(), bad.spec()); !errors.Is(err, sdk.Unsupported) {
				t.Fatalf("Replace: %v", err)
			}
			synctest.Wait()
			if shared {
				expect(t, rec, "up 1")
			} else {
				expect(t, rec, "up 1", "drain 1", "down 1", "up 3")
			}
			if bad.last().closes != 1 {
				t.Fatal("the failed instance was not closed")
			}
		})
	}
}

func TestDrainEndsWithEitherInstance(t *testing.T) {
	for _, dying := range []int{0, 1} {
		st := &stage{}
		supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
			rec.wait(t, "up 1", 1)
			rec.drain = func(ctx context.Context, _ *Instance) {
				st.actors[dying].crash(errors.New("boom"))
				<-ctx.Done()
			}
			start := time.Now()
			if err := s.Replace(t.Context(), st.spec()); err != nil {
				t.Fatal(err)
			}
			if time.Since(start) > time.Second {
				t.Fatalf("drained for %v", time.Since(start))
			}
			synctest.Wait()
			if dying == 0 {
				expect(t, rec, "up 1", "up 2", "drain 1", "down 1: plugin exited")
			} else {
				expect(t, rec, "up 1", "up 2", "drain 1", "down 1", "down 2: plugin exited")
			}
		})
	}
}

func TestDrainIsBounded(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		rec.wait(t, "up 1", 1)
		rec.drain = func(ctx context.Context, _ *Instance) { <-ctx.Done() }
		start := time.Now()
		if err := s.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 30*time.Second {
			t.Fatalf("drained for %v", took)
		}
	})
}

func TestStopIsBounded(t *testing.T) {
	st := &stage{make: func(int) *fake {
		f := newFake()
		f.close = func(ctx context.Context) { <-ctx.Done() }
		return f
	}}
	synctest.Test(t, func(t *testing.T) {
		rec := newRecorder()
		s := New(st.spec(), Options{}, rec)
		s.Start()
		rec.wait(t, "up 1", 1)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if err := s.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Stop: %v", err)
		}
		if took := time.Since(start); took != time.Second {
			t.Fatalf("took %v", took)
		}
		expect(t, rec, "up 1", "down 1")
	})
}

func TestStopWhileStarting(t *testing.T) {
	st := &stage{make: func(int) *fake {
		f := newFake()
		f.configure = func(ctx context.Context, _ sdk.Config) (sdk.Setup, error) {
			<-ctx.Done()
			return sdk.Setup{}, ctx.Err()
		}
		return f
	}}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, rec *recorder) {
		synctest.Wait()
		start := time.Now()
		if err := s.Stop(t.Context()); err != nil || time.Since(start) != 0 {
			t.Fatalf("Stop: %v after %v", err, time.Since(start))
		}
		if st.last().closes != 1 {
			t.Fatal("not closed")
		}
		expect(t, rec)
	})
}

func TestAbandoned(t *testing.T) {
	for _, path := range []string{"shared", "exclusive"} {
		synctest.Test(t, func(t *testing.T) {
			d := newDoomed()
			rec := newRecorder()
			s := newSupervisor(Spec{Name: "t", Path: path}, Options{}, rec, d)
			s.Start()
			rec.wait(t, "up 1", 1)
			start := time.Now()
			rec.insts[1].Transport.(*fake).crash(errors.New("boom"))
			if path == "shared" {
				rec.wait(t, "up 2", 1)
				if time.Since(start) < 10*time.Second || s.Status().Abandoned != 1 {
					t.Fatalf("%d abandoned after %v", s.Status().Abandoned, time.Since(start))
				}
				close(d.free)
			} else {
				rec.wait(t, "quarantined: busy", 1)
				if err := s.Status().LastError; !errors.Is(err, errDeviceHeld) {
					t.Fatalf("last error %v", err)
				}
				before := s.Status().Abandoned
				close(d.free) // it dies after all
				at := time.Now()
				rec.wait(t, "up 3", 1)
				if time.Since(at) > time.Second || before < 1 {
					t.Fatalf("%d abandoned, tried again after %v", before, time.Since(at))
				}
			}
			if err := s.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if n := s.Status().Abandoned; n != 0 {
				t.Fatalf("%d abandoned at the end", n)
			}
		})
	}
}

func itoa(n int) string { return string(rune('0' + n)) }

// What instances dropped adds up over restarts.
func TestDroppedRecordsAddUp(t *testing.T) {
	st := &stage{}
	supervised(t, st.spec(), Options{}, func(t *testing.T, s *Supervisor, _ *recorder) {
		_ = s.Ready(t.Context())
		first := st.last()
		first.dropped.Store(3)
		if n := s.Status().Dropped; n != 3 {
			t.Errorf("%d dropped", n)
		}
		first.crash(errors.New("boom"))
		time.Sleep(time.Second)
		if n := s.Status().Dropped; n != 3 || st.last() == first {
			t.Errorf("%d dropped after a restart", n)
		}
		st.last().dropped.Store(2)
		if n := s.Status().Dropped; n != 5 {
			t.Errorf("%d dropped by both", n)
		}
	})
}
