package simverbs

import (
	"testing"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

// TestHeldCompletions: completions that wait are dropped by RESET, though the
// sender has seen success.
func TestHeldCompletions(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{})
	w.receives(1, 0, 1)
	w.ok(w.HoldCompletions("b", "sim0", true))
	w.send(0, 1)
	w.statuses(0, verbs.Success)
	w.quiet(1)
	qps, err := w.QPs("b")
	w.ok(err)
	want := QPInfo{QPName: QPName{"b", "sim0", w.at[1].QP}, State: verbs.RTS, Port: 1, Waiting: 1}
	if len(qps) != 1 || qps[0] != want {
		t.Fatalf("%+v, want %+v", qps, want)
	}
	w.ok(w.ToReset(qps[0].QPName))
	w.ok(w.HoldCompletions("b", "sim0", false))
	w.quiet(1)
	if s, _ := w.ends[1].State(w.at[1].QP); s != verbs.Reset {
		t.Errorf("the queue pair is in %v", s)
	}
	w.stop()
}

// TestHoldReleases: what was held comes, and wakes who waits.
func TestHoldReleases(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{})
	w.receives(1, 0)
	w.ok(w.HoldCompletions("b", "", true))
	w.send(0, 1)
	w.statuses(0, verbs.Success)
	released := make(chan error, 1)
	go func() { released <- w.HoldCompletions("b", "", false) }()
	w.statuses(1, verbs.Success)
	w.ok(<-released)
	w.stop()
}

func TestControlError(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{Timeout: 13, RetryCnt: 1})
	first := w.at
	w.connect(verbstest.Attr{Timeout: 13, RetryCnt: 1})
	w.ok(w.ToError(QPName{"a", "sim0", first[0].QP}))
	w.event(0, verbs.LastWQEReached)
	states := func(host string) (s [2]verbs.QPState) {
		qps, err := w.QPs(host)
		w.ok(err)
		for i, q := range qps {
			s[i] = q.State
		}
		return s
	}
	if s := states("a"); s != [2]verbs.QPState{verbs.Err, verbs.RTS} {
		t.Errorf("after one: %v", s)
	}
	w.ok(w.ToError(QPName{Host: "b"}))
	if s := states("b"); s != [2]verbs.QPState{verbs.Err, verbs.Err} {
		t.Errorf("after the host's: %v", s)
	}
	w.stop()
}

func TestDropAndMute(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{})
	w.receives(1, 0, 1, 2)
	b := QPName{"b", "sim0", w.at[1].QP}
	w.send(0, 1)
	w.statuses(0, verbs.Success)
	w.ok(w.DropCompletions(b))
	w.quiet(1)
	w.ok(w.Mute(b, true))
	w.send(0, 2)
	w.statuses(0, verbs.Success)
	w.quiet(1)
	w.ok(w.Mute(b, false))
	w.send(0, 3)
	w.statuses(1, verbs.Success)
	w.statuses(0, verbs.Success)
	w.stop()
}

func TestStarve(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{RNRTimer: 10})
	w.receives(1, 0)
	w.ok(w.Starve("b", "sim0", true))
	w.send(0, 1)
	w.quiet(1)
	w.quiet(0)
	w.ok(w.Starve("b", "sim0", false))
	w.statuses(0, verbs.Success)
	w.stop()
}

// TestLoseDevice: nothing completes on a device that is lost, and all of it
// can be closed.
func TestLoseDevice(t *testing.T) {
	w := newWorld(t, verbstest.Setup{})
	w.connect(verbstest.Attr{Timeout: 13, RetryCnt: 1})
	w.send(0, 1)
	w.ok(w.LoseDevice("a", "sim0"))
	w.event(0, verbs.DeviceFatal)
	w.quiet(0)
	if _, err := w.ends[0].PostSend(w.at[0].QP, verbstest.WR{}); err == nil {
		t.Error("a lost device takes sends")
	}
	if _, err := w.ends[0].NewQP(1); err == nil {
		t.Error("a lost device makes queue pairs")
	}
	w.stop()
}

// TestControlFromOutside: accounts of another process, which a test asserts
// at the end.
func TestControlFromOutside(t *testing.T) {
	dir := shortDir(t)
	e := startProcess(t, hostOptions(dir, "b", 2))
	c := Control(dir)
	clean := func() bool {
		t.Helper()
		a, err := c.Accounts("b")
		if err != nil || len(a) != 1 {
			t.Fatalf("%+v %v", a, err)
		}
		return a[0].IsClean()
	}
	if err := e.Start(verbstest.Setup{}); err != nil {
		t.Fatal(err)
	}
	if clean() {
		t.Error("a device is open, and the accounts are clean")
	}
	if err := e.Stop(); err != nil {
		t.Fatal(err)
	}
	if !clean() {
		t.Error("the accounts are not clean")
	}
	if a, err := c.Accounts("nobody"); err != nil || len(a) != 0 {
		t.Errorf("%+v %v", a, err)
	}
}
