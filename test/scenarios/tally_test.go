//go:build linux

package scenarios

import (
	"bytes"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// message is the i-th notification of a series. Its payload tells whether it
// is whole.
func message(prefix string, i int) engine.Notification {
	name := fmt.Sprintf("%s/%d", prefix, i)
	return engine.Notification{Name: name, Payload: payload(name)}
}

// payload is what belongs to a name: between 0 and 500 bytes.
func payload(name string) []byte {
	sum := 0
	for _, c := range name {
		sum = sum*31 + int(c)
	}
	return []byte(strings.Repeat(name+"\x00", max(0, sum%500/(len(name)+1))))
}

// tally counts what arrives.
type tally struct {
	mu       sync.Mutex
	names    map[string]int
	stamps   map[engine.Stamp]int
	by       map[string]int // transport
	damaged  []string
	unstamps int // without a stamp
	total    int
}

func (l *tally) take(r *engine.Received) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.names == nil {
		l.names, l.stamps, l.by = map[string]int{}, map[engine.Stamp]int{}, map[string]int{}
	}
	l.total++
	l.by[r.Transport]++
	l.names[r.Name]++
	if r.Stamp == (engine.Stamp{}) {
		l.unstamps++
	} else {
		l.stamps[r.Stamp]++
	}
	if !bytes.Equal(r.Payload, payload(r.Name)) {
		l.damaged = append(l.damaged, r.Name)
	}
}

func (l *tally) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.total
}

// over counts arrivals by transport.
func (l *tally) over() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.by)
}

// expect requires that exactly these series arrived, each notification once
// and undamaged. All have been acknowledged; the last may yet have to be read.
func (l *tally) expect(t *testing.T, series map[string]int) {
	t.Helper()
	want := 0
	for _, count := range series {
		want += count
	}
	for end := time.Now().Add(patience); l.count() < want && time.Now().Before(end); {
		time.Sleep(pollEvery)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for prefix, count := range series {
		missing := 0
		for i := range count {
			if l.names[message(prefix, i).Name] == 0 {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("%s: %d of %d never arrived", prefix, missing, count)
		}
	}
	doubled := 0
	for _, n := range l.names {
		doubled += n - 1
	}
	for _, n := range l.stamps {
		doubled += n - 1
	}
	if l.total != want || doubled > 0 || l.unstamps > 0 || len(l.damaged) > 0 {
		t.Errorf("%d arrived of %d, %d of them again, %d without a stamp, damaged %.5q", l.total, want, doubled, l.unstamps, l.damaged)
	}
}
