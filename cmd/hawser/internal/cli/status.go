package cli

import (
	"fmt"
	"io"
	"sync"

	"golang.org/x/term"
)

// status is a line that is replaced again and again, on a terminal only.
type status struct {
	mu    sync.Mutex
	w     io.Writer
	width func() int
	shown bool
}

func newStatus(w io.Writer) *status {
	if !terminal(w) {
		return &status{}
	}
	f := w.(interface{ Fd() uintptr })
	return &status{w: w, width: func() int {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil {
			return n
		}
		return 80
	}}
}

func (s *status) show(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.w == nil {
		return
	}
	if n := s.width() - 1; len(text) > n && n > 0 {
		text = text[:n]
	}
	s.shown = true
	fmt.Fprintf(s.w, "\r\x1b[K%s", text)
}

func (s *status) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown {
		s.shown = false
		fmt.Fprint(s.w, "\r\x1b[K")
	}
}
