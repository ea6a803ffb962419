package rigtest

import (
	"bytes"
	"strings"
	"sync"
)

// Log is what a transport writes its log to, for a test to read.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Has reports whether a text was written.
func (l *Log) Has(text string) bool { return strings.Contains(l.String(), text) }
