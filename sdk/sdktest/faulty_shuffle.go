package sdktest

import (
	"math/rand/v2"
	"slices"
	"time"
)

// shuffle is one direction's queue: it drops, doubles, delays and reorders.
// Guarded by the transport's lock.
type shuffle struct {
	rng    *rand.Rand
	counts *FrameCounts
	queue  []shuffled // by due, then in order of arrival
	last   time.Time  // due of the last one that keeps its place
}

type shuffled struct {
	due      time.Time
	frame    *faultyFrame
	data     []byte
	late     bool // others may overtake it
	overtook bool // one has
}

// push queues a frame, or two or none. It returns how many.
func (s *shuffle) push(now time.Time, faults FrameFaults, maxDelay time.Duration, frame *faultyFrame, data []byte) int {
	if s.chance(faults.Drop) {
		s.counts.Dropped++
		return 0
	}
	copies := 1
	if s.chance(faults.Double) {
		s.counts.Doubled++
		copies = 2
	}
	for range copies {
		if s.last.Before(now) {
			s.last = now
		}
		if s.chance(faults.Delay) {
			s.counts.Delayed++
			s.last = s.last.Add(s.delay(maxDelay))
		}
		item := shuffled{due: s.last, frame: frame, data: data}
		if s.chance(faults.Reorder) {
			item.late = true
			item.due = item.due.Add(s.delay(maxDelay))
		}
		s.insert(item)
	}
	return copies
}

func (s *shuffle) chance(p float64) bool { return p > 0 && s.rng.Float64() < p }

func (s *shuffle) delay(maxDelay time.Duration) time.Duration {
	return 1 + time.Duration(s.rng.Int64N(int64(max(maxDelay, 1))))
}

func (s *shuffle) insert(item shuffled) {
	i := len(s.queue)
	for i > 0 && s.queue[i-1].due.After(item.due) {
		i--
		if q := &s.queue[i]; q.late && !q.overtook {
			q.overtook = true
			s.counts.Reordered++
		}
	}
	s.queue = slices.Insert(s.queue, i, item)
}

// pop removes what is due, and tells when the next one is, if any. With all it
// removes everything.
func (s *shuffle) pop(now time.Time, all bool) (due []shuffled, next time.Time) {
	n := 0
	for n < len(s.queue) && (all || !s.queue[n].due.After(now)) {
		n++
	}
	due = slices.Clone(s.queue[:n])
	s.queue = slices.Delete(s.queue, 0, n)
	if len(s.queue) > 0 {
		next = s.queue[0].due
	}
	return due, next
}
