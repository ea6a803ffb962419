package sim

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// trace is what happened, one line per event with its fake time. Lines belong
// to a notification or, with an empty key, to everybody: faults and lives.
type trace struct {
	start time.Time
	mu    sync.Mutex
	lines []line
	bad   []fault
}

type line struct {
	at   time.Duration
	key  string
	text string
}

// fault is a broken promise, with the notification that it was broken for.
type fault struct{ key, text string }

func (t *trace) add(key, format string, args ...any) {
	at := time.Since(t.start)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines = append(t.lines, line{at, key, fmt.Sprintf(format, args...)})
}

func (t *trace) broken(key, format string, args ...any) {
	t.add(key, "BROKEN: "+format, args...)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.bad = append(t.bad, fault{key, fmt.Sprintf(format, args...)})
}

// all is every line.
func (t *trace) all() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]string, len(t.lines))
	for i, l := range t.lines {
		all[i] = fmt.Sprintf("%v %s %s", l.at, l.key, l.text)
	}
	return all
}

const (
	maxBroken = 8
	maxLines  = 400
)

// report tells what was broken, with the lines that concern it: all faults,
// and all of the notifications that are named.
func (t *trace) report() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.bad) == 0 {
		return ""
	}
	var b strings.Builder
	keys := map[string]bool{"": true}
	for i, f := range t.bad {
		if i == maxBroken {
			fmt.Fprintf(&b, "... and %d more\n", len(t.bad)-i)
			break
		}
		keys[f.key] = true
		fmt.Fprintf(&b, "%s %s\n", f.key, f.text)
	}
	b.WriteString("trace of these, and all faults:\n")
	n := 0
	for _, l := range t.lines {
		if !keys[l.key] {
			continue
		}
		if n++; n > maxLines {
			b.WriteString("(cut)\n")
			break
		}
		fmt.Fprintf(&b, "%12v %s %s\n", l.at, l.key, l.text)
	}
	return b.String()
}
