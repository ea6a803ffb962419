package demo

import (
	"fmt"
	"time"
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
	say := func(format string, args ...any) { v.problems = append(v.problems, fmt.Sprintf(format, args...)) }
	in := map[string]arrival{} // by name
	sessions := map[uint64]int{}
	for _, a := range l.arrived {
		if other, ok := in[a.Name]; ok && other.Life != a.Life {
			say("%s reached both lives", a.Name)
		}
		if life, ok := sessions[a.Session]; ok && life != a.Life {
			say("session %016x was used in both lives", a.Session)
		}
		in[a.Name], sessions[a.Session] = a, a.Life
		if a.Life == 1 {
			v.first++
			continue
		}
		if v.second++; v.second == 1 {
			v.back = a.At
		}
	}
	sentAt := map[int]time.Duration{}
	for _, s := range l.sent {
		sentAt[s.Index] = s.At
	}
	for _, e := range l.ended {
		a, arrived := in[name(e.Index, count)]
		at := sentAt[e.Index]
		isNew := v.second > 0 && at > v.back
		if isNew {
			v.after++
		}
		if arrived && e.Index != count {
			if e.Acked {
				v.kept++
			} else {
				v.strays++
			}
		}
		switch {
		case arrived && a.Life == 2 && !e.Acked:
			say("%s ended as failed (%s) and reached the second life", a.Name, e.Code)
		case arrived && a.Seq != e.Seq && e.Acked:
			say("%s arrived with number %d, and was sent with %d", a.Name, a.Seq, e.Seq)
		case arrived && a.Life == 2 && e.At < up:
			say("%s was acknowledged before the second life began, and reached it", a.Name)
		case !arrived && e.Acked && e.At >= up:
			say("%s was acknowledged by the second life, and never arrived", name(e.Index, count))
		case !arrived && e.Acked && at > killed:
			say("%s was sent after the kill, acknowledged, and never arrived", name(e.Index, count))
		case !arrived && e.Acked:
			v.unread++
		case arrived && e.Code == "not sent":
			say("%s ended as not sent, and arrived", a.Name)
		case isNew && !e.Acked:
			say("%s was sent after the second life had received something, and failed: %s", name(e.Index, count), e.Error)
		}
		if len(v.problems) > maxProblems {
			say("and so on")
			break
		}
	}
	if v.first == 0 || v.second == 0 {
		say("the lives received %d and %d: the fault was not mid-stream", v.first, v.second)
	}
	return v
}

// maxProblems bounds what one row says of single notifications.
const maxProblems = 8
