// Package nearest finds what somebody meant: the closest of the names that
// would have been right, for error messages.
package nearest

import (
	"fmt"
	"strings"
)

// maxListed bounds the names in a message, maxLength what is compared: nobody
// meant anything longer.
const (
	maxListed = 16
	maxLength = 64
)

// Hint returns the end of an error message, "; did you mean x?" with the
// nearest of the names, or a list of them if none is near and they are few.
func Hint(s string, names []string) string {
	best, distance := "", max(2, len(s)/4)+1
	for _, n := range names {
		if d := Distance(strings.ToLower(s), strings.ToLower(n)); d < distance {
			best, distance = n, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %s?", best)
	case len(names) == 0 || len(names) > maxListed:
		return ""
	default:
		return "; known are " + strings.Join(names, ", ")
	}
}

// Distance counts the insertions, deletions, substitutions and swaps of
// neighbours that make b of a.
func Distance(a, b string) int {
	if len(a) > maxLength || len(b) > maxLength {
		return max(len(a), len(b))
	}
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}
