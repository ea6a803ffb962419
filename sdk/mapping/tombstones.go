package mapping

import "math"

// maxTombstones bounds what is remembered of publications that are no more, so
// that a provider that publishes and withdraws without end costs a fixed
// amount. A descriptor that is late by more than so many is not recognised.
const maxTombstones = 8192

// never is the floor of a key that nothing may announce again.
const never = math.MaxUint64

// tombstones remember, per key, the lowest version of a descriptor that may
// announce it again. The oldest are forgotten. The zero value is empty.
type tombstones struct {
	floors map[Key]uint64
	order  []Key // a ring once it is full
	oldest int
}

// bury notes that the source is no more. A capability never comes back. A key
// without one may, with a newer descriptor than floor - 1.
func (t *tombstones) bury(k Key, floor uint64) {
	if old, ok := t.floors[k]; ok {
		t.floors[k] = max(old, floor)
		return
	}
	if t.floors == nil {
		t.floors = map[Key]uint64{}
	}
	if len(t.order) < maxTombstones {
		t.order = append(t.order, k)
	} else {
		delete(t.floors, t.order[t.oldest])
		t.order[t.oldest] = k
		t.oldest = (t.oldest + 1) % maxTombstones
	}
	t.floors[k] = floor
}

// forbid reports whether a descriptor of this version may not announce the key.
func (t *tombstones) forbid(k Key, version uint64) bool {
	floor, ok := t.floors[k]
	return ok && (floor == never || version < floor)
}
