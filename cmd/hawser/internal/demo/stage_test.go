package demo

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// However long a fault takes, and whichever that is, the stream is not over
// before the last one: it slows down while they last.
func TestTheStreamOutlivesItsFaults(t *testing.T) {
	const count, faults, full = 4000, turnKills, 1000
	for slow := range faults {
		rest, cycle := float64(count)*0.85, firstCycle // the first fault's part is sent
		for i := range faults {
			takes := firstCycle
			if i >= slow {
				takes = 5 * time.Second
			}
			pace := full
			for at := time.Duration(0); at < takes; at += slowdownEvery {
				pace = min(pace, fitting(int(rest), faults-i-1, max(cycle, at), full))
				rest -= float64(pace) * slowdownEvery.Seconds()
			}
			cycle = max(cycle, takes)
			if rest < count/80 {
				t.Fatalf("slow from fault %d on: %.0f are left after fault %d", slow, rest, i)
			}
		}
	}
}

// A node on a host of its own is reached there, and keeps what its row says.
func TestNodesOnHostsListenWhereTheyAreReached(t *testing.T) {
	x := lab.Setup{Settings: map[string]json.RawMessage{first: json.RawMessage(`{"advertise": "x:1"}`), second: json.RawMessage(`{"listen": "y:2"}`)}}
	if err := reachable(&x, "10.77.2.1"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{first: `{"advertise":"x:1","listen":"10.77.2.1:0"}`, second: `{"listen":"y:2"}`} {
		if got := string(x.Settings[name]); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}
