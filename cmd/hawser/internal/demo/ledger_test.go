package demo

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const ms = time.Millisecond

// whole is a ledger of a row in which nothing went wrong.
func whole(count int) *ledger {
	l := newLedger()
	for i := range count + 1 {
		at := time.Duration(i) * 10 * ms
		l.sent = append(l.sent, sent{i, at})
		l.arrived = append(l.arrived, arrivedAt(i, count, at+ms, 1))
		l.ended = append(l.ended, ending{Index: i, At: at + 2*ms, Acked: true, Seq: uint64(i + 1), Copies: 1})
	}
	l.dones = 1
	return l
}

func arrivedAt(i, count int, at time.Duration, life int) arrival {
	return arrival{
		Name: name(i, count), Transport: "tcp", Sender: "s", Session: uint64(life), Seq: uint64(i + 1), At: at, Intact: true, Life: life,
	}
}

func TestTally(t *testing.T) {
	for _, tt := range []struct {
		what    string
		change  func(*ledger)
		problem string // none if empty
	}{
		{"nothing wrong", func(*ledger) {}, ""},
		{"a name twice under another stamp", func(l *ledger) {
			a := arrivedAt(3, 10, 5*ms, 1)
			a.Seq = 99
			l.arrived = append([]arrival{a}, l.arrived...)
		}, "1 duplicates"},
		{"a stamp twice under another name", func(l *ledger) { l.arrived[4].Seq = l.arrived[3].Seq }, "1 duplicates"},
		{"one lost", func(l *ledger) { l.arrived = append(l.arrived[:3], l.arrived[4:]...) }, "1 of 10 never arrived"},
		{"one damaged", func(l *ledger) { l.arrived[3].Intact = false }, "1 arrived damaged"},
		{"one before its transfer", func(l *ledger) { l.arrived[4].Early = true }, "1 arrived without the bytes"},
		{"a stranger", func(l *ledger) { l.arrived[3].Name = "who" }, "1 arrived that nobody sent"},
		{"END too early", func(l *ledger) {
			l.arrived[9], l.arrived[10] = l.arrived[10], l.arrived[9]
		}, "END was not the last to arrive"},
		{"one that never ended", func(l *ledger) { l.ended = l.ended[1:] }, "1 never ended"},
		{"one failed", func(l *ledger) { l.ended[2].Acked, l.ended[2].Code = false, "not sent" }, "1 were reported as failed"},
		{"one failed without a code", func(l *ledger) { l.ended[2].Acked = false }, "1 failed without saying"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			l := whole(10)
			tt.change(l)
			y := l.tally(10)
			got := strings.Join(append(y.problems(), y.complete()...), "; ")
			if tt.problem == "" && got != "" || !strings.Contains(got, tt.problem) {
				t.Errorf("got %q, want %q", got, tt.problem)
			}
		})
	}
}

func TestTallyCounts(t *testing.T) {
	l := whole(10)
	l.arrived[7].Transport = "rpcfallback"
	for i := 8; i <= 10; i++ {
		l.arrived[i].At += 100 * ms
	}
	y := l.tally(10)
	if y.Received != 10 || y.Transfers != 5 || y.Standalone != 5 || y.By["tcp"] != 9 || y.By["rpcfallback"] != 1 {
		t.Errorf("got %+v", y)
	}
	if y.LongestGap != 110*ms || y.Slowest != 2*ms {
		t.Errorf("gap %v, slowest %v", y.LongestGap, y.Slowest)
	}
	if sent, received := l.before(25 * ms); sent != 3 || received != 3 {
		t.Errorf("%d and %d", sent, received)
	}
}

// twoLives is a ledger of a receiver that was killed at 35 ms and was up again
// at 50 ms: notification 3 was pending and 4 was sent meanwhile.
func twoLives() *ledger {
	l := whole(10)
	for i := range l.arrived {
		if i >= 5 {
			l.arrived[i] = arrivedAt(i, 10, l.arrived[i].At, 2)
		}
	}
	l.arrived = append(l.arrived[:3], l.arrived[5:]...)
	for i, code := range map[int]string{3: "delivery unknown", 4: "not sent"} {
		l.ended[i] = ending{Index: i, At: 45 * ms, Code: code}
	}
	return l
}

func TestLives(t *testing.T) {
	for _, tt := range []struct {
		what    string
		change  func(*ledger)
		problem string
	}{
		{"nothing wrong", func(*ledger) {}, ""},
		{"pending and unread in the first life", func(l *ledger) { l.ended[3] = ending{Index: 3, At: 34 * ms, Acked: true} }, ""},
		{"arrived and unknown", func(l *ledger) { l.arrived = append(l.arrived, arrivedAt(3, 10, 34*ms, 1)) }, ""},
		{"unknown, and in the second life", func(l *ledger) { l.arrived = append(l.arrived, arrivedAt(3, 10, 60*ms, 2)) },
			"reached the second life"},
		{"not sent, and in the first life", func(l *ledger) { l.arrived = append(l.arrived, arrivedAt(4, 10, 34*ms, 1)) },
			"ended as not sent, and arrived"},
		{"in both", func(l *ledger) { l.arrived = append(l.arrived, arrivedAt(2, 10, 60*ms, 2)) }, "reached both lives"},
		{"the first life's session in the second", func(l *ledger) { l.arrived[4].Session = 1 }, "was used in both lives"},
		{"acknowledged and lost", func(l *ledger) { l.arrived = append(l.arrived[:5], l.arrived[6:]...) },
			"acknowledged by the second life, and never arrived"},
		{"a new one failed", func(l *ledger) {
			l.ended[8] = ending{Index: 8, At: 90 * ms, Code: "not sent", Error: "no way"}
			l.arrived = append(l.arrived[:6], l.arrived[7:]...)
		}, "was sent after the second life had received something, and failed: no way"},
		{"another number", func(l *ledger) { l.ended[7].Seq = 1 }, "and was sent with 1"},
		{"no second life", func(l *ledger) { l.arrived = l.arrived[:3] }, "not mid-stream"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			l := twoLives()
			tt.change(l)
			v := l.inLives(10, 35*ms, 50*ms)
			got := strings.Join(v.problems, "; ")
			if tt.problem == "" && got != "" || !strings.Contains(got, tt.problem) {
				t.Errorf("got %q, want %q", got, tt.problem)
			}
		})
	}
}

func TestLivesCounts(t *testing.T) {
	l := twoLives()
	l.ended[2].Acked, l.ended[2].Code = false, "delivery unknown"
	l.ended[3] = ending{Index: 3, At: 34 * ms, Acked: true}
	v := l.inLives(10, 35*ms, 50*ms)
	// END is counted nowhere.
	if v.first != 3 || v.second != 5 || v.kept != 7 || v.strays != 1 || v.unread != 1 || v.after != 5 || v.back != 51*ms {
		t.Errorf("got %+v", v)
	}
}

func TestLedgerAwaits(t *testing.T) {
	l := newLedger()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		raw, _ := json.Marshal(entries{Sent: []sent{{0, ms}}})
		l.take(1, 0, entriesEvent, raw)
		raw, _ = json.Marshal(entries{Arrived: []arrival{arrivedAt(0, 9, ms, 0)}})
		l.take(2, 0, entriesEvent, raw)
	}()
	if err := l.await(ctx, "an arrival", func(l *ledger) bool { return len(l.arrived) == 1 }); err != nil {
		t.Fatal(err)
	}
	if sent, received := l.counts(); sent != 1 || received != 1 || l.copy().arrived[0].Life != 2 {
		t.Errorf("%d, %d", sent, received)
	}
	over, stop := context.WithCancel(ctx)
	stop()
	err := l.await(over, "more", func(*ledger) bool { return false })
	if err == nil || !strings.Contains(err.Error(), "waited in vain for more (1 sent, 0 ended, 1 received)") {
		t.Errorf("got %v", err)
	}
	l.take(1, 0, "nonsense", nil)
	if err := l.await(ctx, "more", func(*ledger) bool { return false }); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("got %v", err)
	}
}

func TestChoose(t *testing.T) {
	for want, names := range map[string][]string{
		"no fault":           {"1", "no fault", "NO FAULT", "no f"},
		"tcp stopped":        {"4", "SIGSTOP receiver's", "stopped"},
		"receiver restarted": {"receiver node killed and started again at the same address"},
	} {
		for _, n := range names {
			rows, err := Choose(Rows(), []string{n})
			if err != nil || len(rows) != 1 || rows[0].Name != want {
				t.Errorf("%q: %v %v", n, rows, err)
			}
		}
	}
	if rows, err := Choose(Rows(), nil); err != nil || len(rows) != 16 {
		t.Errorf("%v %v", rows, err)
	}
	for _, n := range []string{"", "17", "SIGKILL", "SIGSTOP", "cut"} {
		if _, err := Choose(Rows(), []string{n}); err == nil {
			t.Errorf("%q is no one row", n)
		}
	}
	const want = `more than one row matches "cut": "tcp cut", "tcp half cut"`
	if _, err := Choose(Rows(), []string{"cut"}); err == nil || err.Error() != want {
		t.Errorf("%v", err)
	}
}
