package demo

import (
	"fmt"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// lives is what a ledger tells of a receiver that died and was started again.
type lives struct {
	// first and second count what each life's application received, unread
	// what was acknowledged by the first and died with it, unread.
	first, second, unread int
	// kept is what was acknowledged and received, strays what was received
	// and ended as unknown.
	kept, strays int
	// back is the first arrival in the second life.
	back time.Duration
	// after counts what was sent after that.
	after    int
	problems []string
}

// inLives checks that nothing meant for one life reached the other: the
// receiver's first life was killed at killed, and the second was started at up.
func (l *ledger) inLives(count int, killed, up time.Duration) lives {
	v := lives{}
	in := v.take(l.arrived)
	sentAt := map[int]time.Duration{}
	for _, s := range l.sent {
		sentAt[s.Index] = s.At
	}
	for _, e := range l.ended {
		a, arrived := in[name(e.Index, count)]
		x := fate{ending: e, name: name(e.Index, count), sent: sentAt[e.Index], arrived: arrived, arrival: a}
		x.fresh = v.second > 0 && x.sent > v.back
		if x.fresh {
			v.after++
		}
		if e.Index != count && arrived && e.Acked {
			v.kept++
		} else if e.Index != count && arrived {
			v.strays++
		}
		if problem := x.problem(killed, up); problem != "" {
			v.say("%s", problem)
		} else if !arrived && e.Acked {
			v.unread++
		}
		if len(v.problems) > maxProblems {
			v.say("and so on")
			break
		}
	}
	if v.first == 0 || v.second == 0 {
		v.say("the lives received %d and %d: the fault was not mid-stream", v.first, v.second)
	}
	return v
}

func (v *lives) say(format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf(format, args...))
}

// take counts arrivals, checks that the lives share none and no session, and
// returns them by name.
func (v *lives) take(arrived []arrival) map[string]arrival {
	in, sessions := map[string]arrival{}, map[uint64]int{}
	for _, a := range arrived {
		if other, ok := in[a.Name]; ok && other.Life != a.Life {
			v.say("%s reached both lives", a.Name)
		}
		if life, ok := sessions[a.Session]; ok && life != a.Life {
			v.say("session %016x was used in both lives", a.Session)
		}
		in[a.Name], sessions[a.Session] = a, a.Life
		if a.Name == endName {
			continue // it is counted nowhere
		}
		if a.Life == 1 {
			v.first++
		} else if v.second++; v.second == 1 {
			v.back = a.At
		}
	}
	return in
}

// fate is all that is known of one notification.
type fate struct {
	ending
	name    string
	sent    time.Duration
	fresh   bool // sent after the second life had received something
	arrived bool
	arrival arrival
}

// problem is what must not be, or nothing.
func (x fate) problem(killed, up time.Duration) string {
	switch {
	case x.arrived && x.arrival.Life == 2 && !x.Acked:
		return fmt.Sprintf("%s ended as failed (%s) and reached the second life", x.name, x.Code)
	case x.arrived && x.Acked && x.Seq != 0 && x.arrival.Seq != x.Seq: // a transfer's is not told
		return fmt.Sprintf("%s arrived with number %d, and was sent with %d", x.name, x.arrival.Seq, x.Seq)
	case x.arrived && x.arrival.Life == 2 && x.At < up:
		return x.name + " was acknowledged before the second life began, and reached it"
	case x.arrived && x.Code == engine.NotSent.Error():
		return x.name + " ended as not sent, and arrived"
	case !x.arrived && x.Acked && x.At >= up:
		return x.name + " was acknowledged by the second life, and never arrived"
	case !x.arrived && x.Acked && x.sent > killed:
		return x.name + " was sent after the kill, acknowledged, and never arrived"
	case x.fresh && !x.Acked:
		return fmt.Sprintf("%s was sent after the second life had received something, and failed: %s", x.name, x.Error)
	default:
		return ""
	}
}

// maxProblems bounds what one row says of single notifications.
const maxProblems = 8
