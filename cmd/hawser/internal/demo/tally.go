package demo

import (
	"fmt"
	"slices"
	"time"
)

// Tally is what a ledger adds up to. END is not counted in it.
type Tally struct {
	Expected   int `json:"expected"`
	Received   int `json:"received"` // different ones
	Transfers  int `json:"transfers"`
	Standalone int `json:"standalone"`
	// Duplicates is arrivals whose stamp or whose name had arrived before.
	Duplicates int `json:"duplicates"`
	// Damaged is arrivals with another payload than was sent, Strangers those
	// that nobody sent.
	Damaged   int `json:"damaged"`
	Strangers int `json:"strangers"`
	// Early is arrivals before the bytes of their transfer, or with wrong ones.
	Early int `json:"early"`
	// Acked is those that ended well, and Taken those of them of which only the
	// peer's transport has said so, as with protocols 0 and 1.
	Acked int `json:"acknowledged"`
	Taken int `json:"taken,omitempty"`
	// Failed counts notifications that failed, by code; "" is the one that a
	// failure must not have.
	Failed map[string]int `json:"failed,omitempty"`
	// By counts arrivals by transport.
	By map[string]int `json:"by_transport"`
	// LongestGap is the longest time between two arrivals.
	LongestGap time.Duration `json:"-"`
	// Slowest is the longest time from Notify to the acknowledgement.
	Slowest time.Duration `json:"-"`
	EndLast bool          `json:"end_last"`
}

// stampKey is a stamp within one life of the receiver.
type stampKey struct {
	life    int
	sender  string
	session uint64
	seq     uint64
}

// tally adds up a ledger of count notifications.
func (l *ledger) tally(count int) Tally {
	t := Tally{Expected: count, By: map[string]int{}, Failed: map[string]int{}}
	known := map[string]int{}
	for i := range count + 1 {
		known[name(i, count)] = i
	}
	names, stamps := map[string]bool{}, map[stampKey]bool{}
	var times []time.Duration
	for _, a := range l.arrived {
		i, ok := known[a.Name]
		if !ok {
			t.Strangers++
			continue
		}
		if !a.Intact {
			t.Damaged++
		}
		if a.Early {
			t.Early++
		}
		key := stampKey{a.Life, a.Sender, a.Session, a.Seq}
		stamped := a.Session != 0 // protocol 0 has none
		if names[a.Name] || stamped && stamps[key] {
			t.Duplicates++
			continue
		}
		names[a.Name], stamps[key] = true, true
		times = append(times, a.At)
		if i == count {
			continue
		}
		t.Received++
		t.By[a.Transport]++
		if kind(i) == "transfer" {
			t.Transfers++
		} else {
			t.Standalone++
		}
	}
	t.LongestGap = longestGap(times)
	t.EndLast = len(l.arrived) > 0 && l.arrived[len(l.arrived)-1].Name == endName
	l.tallyEnds(count, &t)
	return t
}

// tallyEnds adds up how they ended at the sender.
func (l *ledger) tallyEnds(count int, t *Tally) {
	at := map[int]time.Duration{}
	for _, s := range l.sent {
		at[s.Index] = s.At
	}
	for _, e := range l.ended {
		switch {
		case e.Index == count:
		case e.Acked:
			t.Acked++
			if e.Taken {
				t.Taken++
			}
			t.Slowest = max(t.Slowest, e.At-at[e.Index])
		default:
			t.Failed[e.Code]++
		}
	}
}

func longestGap(times []time.Duration) (longest time.Duration) {
	slices.Sort(times)
	for i := 1; i < len(times); i++ {
		longest = max(longest, times[i]-times[i-1])
	}
	return longest
}

// failed is how many failed, whatever the code.
func (t Tally) failed() (n int) {
	for _, k := range t.Failed {
		n += k
	}
	return n
}

// problems is what keeps the promises from holding in any row.
func (t Tally) problems() (list []string) {
	say := func(ok bool, format string, args ...any) {
		if !ok {
			list = append(list, fmt.Sprintf(format, args...))
		}
	}
	say(t.Duplicates == 0, "%d duplicates", t.Duplicates)
	say(t.Damaged == 0, "%d arrived damaged", t.Damaged)
	say(t.Early == 0, "%d arrived without the bytes of their transfer", t.Early)
	say(t.Strangers == 0, "%d arrived that nobody sent", t.Strangers)
	say(t.EndLast, "END was not the last to arrive")
	say(t.Failed[""] == 0, "%d failed without saying whether a copy may arrive", t.Failed[""])
	pending := t.Expected - t.Acked - t.failed()
	say(pending == 0, "%d never ended", pending)
	return list
}

// complete is the further problems of a row in which everything must arrive.
func (t Tally) complete() (list []string) {
	if t.Received != t.Expected {
		list = append(list, fmt.Sprintf("%d of %d never arrived", t.Expected-t.Received, t.Expected))
	}
	if n := t.failed(); n > 0 {
		list = append(list, fmt.Sprintf("%d were reported as failed", n))
	}
	return list
}
