package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows how far something is, on a terminal and once it has taken a
// second.
type bar struct {
	began time.Time
	w     io.Writer // nil shows nothing
	total int
	what  string

	mu  sync.Mutex
	bar *progressbar.ProgressBar
}

const barAfter = time.Second

func newBar(w io.Writer, total int, what string) *bar {
	b := &bar{began: time.Now(), total: total, what: what}
	if terminal(w) {
		b.w = w
	}
	return b
}

// set says how much is done.
func (b *bar) set(done int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.w == nil || time.Since(b.began) < barAfter {
		return
	}
	if b.bar == nil {
		b.bar = progressbar.NewOptions(b.total, progressbar.OptionSetWriter(b.w), progressbar.OptionSetDescription(b.what),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionFullWidth(), progressbar.OptionClearOnFinish())
	}
	_ = b.bar.Set(done)
}

// finish takes it away.
func (b *bar) finish() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
	b.w = nil
}

// carriedBy tells which transport carried how many.
func carriedBy(by map[string]int) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(by)) {
		list = append(list, fmt.Sprintf("%s carried %d", name, by[name]))
	}
	return strings.Join(list, ", ")
}
