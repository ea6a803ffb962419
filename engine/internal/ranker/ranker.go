// Package ranker decides in which order ways to a peer are tried. It is a pure
// function of what is known about them.
package ranker

import (
	"cmp"
	"slices"
	"time"
)

// MaxPaths is how many paths of one transport are tried before the next
// transport is.
const MaxPaths = 3

// Candidate is one way to a peer.
type Candidate struct {
	// Transport is the transport's place in the configured order; the RPC
	// fallback comes last.
	Transport int
	// Path is the path's place in the transport's order.
	Path int
	// PausedUntil is when the path's pause ends, zero if it is not paused.
	PausedUntil time.Time
}

// Order returns the candidates' indices in the order in which to try them:
// transports as configured, within a transport its paths in their order, at
// most [MaxPaths] of each, paused ones skipped. If every candidate is paused,
// the one whose pause ends first is tried.
func Order(cs []Candidate, now time.Time) []int {
	order := make([]int, 0, len(cs))
	soonest := -1
	for i, c := range cs {
		if c.PausedUntil.After(now) {
			if soonest < 0 || sooner(c, cs[soonest]) {
				soonest = i
			}
			continue
		}
		order = append(order, i)
	}
	if len(order) == 0 {
		if soonest >= 0 {
			order = append(order, soonest)
		}
		return order
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(cs[a], cs[b]) })
	taken, transport := 0, -1
	return slices.DeleteFunc(order, func(i int) bool {
		if cs[i].Transport != transport {
			transport, taken = cs[i].Transport, 0
		}
		taken++
		return taken > MaxPaths
	})
}

// compare orders candidates as configured.
func compare(a, b Candidate) int {
	return cmp.Or(cmp.Compare(a.Transport, b.Transport), cmp.Compare(a.Path, b.Path))
}

// sooner reports whether a's pause ends before b's; of two that end together
// the one that is configured first comes first.
func sooner(a, b Candidate) bool {
	return cmp.Or(a.PausedUntil.Compare(b.PausedUntil), compare(a, b)) < 0
}
