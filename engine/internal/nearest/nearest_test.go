package nearest

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1},
		{"proto", "porto", 1}, {"kitten", "sitting", 3}, {"a", strings.Repeat("b", 65), 65},
	} {
		if got := Distance(tt.a, tt.b); got != tt.want {
			t.Errorf("%q, %q: got %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
}

func TestHint(t *testing.T) {
	for _, tt := range []struct {
		s     string
		names []string
		want  string
	}{
		{"porto", []string{"listen", "proto"}, "; did you mean proto?"},
		{"PROTO", []string{"proto"}, "; did you mean proto?"},
		{"zzzzzz", []string{"a", "b"}, "; known are a, b"},
		{"x", nil, ""},
		{"zzzzzz", strings.Split(strings.Repeat("abcdefghij,", 17), ","), ""},
	} {
		if got := Hint(tt.s, tt.names); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.s, got, tt.want)
		}
	}
}
