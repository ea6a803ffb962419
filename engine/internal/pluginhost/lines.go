package pluginhost

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sort"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// maxLine is how much of a line is kept; the rest is counted.
	maxLine = 8 << 10
	// keptLines is how many of the last lines are kept for errors.
	keptLines = 20
	// linesPerSecond and lineBurst bound what a plugin can put into the
	// host's log.
	linesPerSecond = 200
	lineBurst      = 1000
	// maxLogAttrs bounds the attributes of one line.
	maxLogAttrs = 32
)

// lines turns what a plugin writes to stderr into lines of the host's log.
// It takes any bytes, in any pieces.
type lines struct {
	log   *slog.Logger
	clock func() time.Time

	line []byte // the present one, at most maxLine
	cut  int    // bytes of the present line that were dropped

	tokens  float64
	filled  time.Time
	skipped int // lines not logged for want of tokens

	mu   sync.Mutex
	last []string
}

func newLines(log *slog.Logger) *lines {
	return &lines{log: log, clock: time.Now, tokens: lineBurst}
}

// Write never fails.
func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		end := -1
		for i, c := range p {
			if c == '\n' {
				end = i
				break
			}
		}
		part := p
		if end >= 0 {
			part = p[:end]
		}
		room := maxLine - len(l.line)
		l.line = append(l.line, part[:min(room, len(part))]...)
		l.cut += max(0, len(part)-room)
		if end < 0 {
			break
		}
		l.flush()
		p = p[end+1:]
	}
	return n, nil
}

// flush ends the present line.
func (l *lines) flush() {
	line, cut := l.line, l.cut
	l.line, l.cut = l.line[:0], 0
	if len(line) == 0 && cut == 0 {
		return
	}
	record, ok := parseRecord(line)
	if !ok || cut > 0 {
		record = logRecord{level: slog.LevelInfo, message: printable(line)}
		if cut > 0 {
			record.message += fmt.Sprintf(" ... (%d more bytes)", cut)
		}
	}
	l.keep(record.text())
	if !l.admit() {
		l.skipped++
		return
	}
	if l.skipped > 0 {
		l.log.Warn("the plugin writes too much: lines were left out of the log", "lines", l.skipped)
		l.skipped = 0
	}
	l.log.LogAttrs(context.Background(), record.level, record.message, record.attrs...)
}

// finish ends the last line and reports what was left out.
func (l *lines) finish() {
	l.flush()
	if l.skipped > 0 {
		l.log.Warn("the plugin writes too much: lines were left out of the log", "lines", l.skipped)
		l.skipped = 0
	}
}

// admit takes a token, if there is one.
func (l *lines) admit() bool {
	now := l.clock()
	if !l.filled.IsZero() {
		l.tokens = min(lineBurst, l.tokens+now.Sub(l.filled).Seconds()*linesPerSecond)
	}
	l.filled = now
	if l.tokens < 1 {
		return false
	}
	l.tokens--
	return true
}

func (l *lines) keep(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.last) == keptLines {
		copy(l.last, l.last[1:])
		l.last = l.last[:keptLines-1]
	}
	l.last = append(l.last, text)
}

// tail returns the last lines.
func (l *lines) tail() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.last...)
}

// logRecord is one line of the SDK's logger.
type logRecord struct {
	level   slog.Level
	message string
	attrs   []slog.Attr
}

// parseRecord reads a line of slog's JSON form. Nothing in it is trusted: any
// field may have any type.
func parseRecord(line []byte) (logRecord, bool) {
	if len(line) == 0 || line[0] != '{' {
		return logRecord{}, false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(line, &fields) != nil {
		return logRecord{}, false
	}
	var r logRecord
	var level string
	if json.Unmarshal(fields["msg"], &r.message) != nil || json.Unmarshal(fields["level"], &level) != nil ||
		r.level.UnmarshalText([]byte(level)) != nil {
		return logRecord{}, false
	}
	r.message = printable([]byte(r.message))
	names := make([]string, 0, len(fields))
	for name := range fields {
		switch name {
		// The host's own attributes cannot be forged.
		case "msg", "level", "time", "transport", "instance", "source":
		default:
			names = append(names, name)
		}
	}
	sort.Strings(names)
	for _, name := range names[:min(len(names), maxLogAttrs)] {
		r.attrs = append(r.attrs, slog.String(printable([]byte(name)), jsonText(fields[name])))
	}
	return r, true
}

// jsonText is a string's content, or any other value's JSON.
func jsonText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return printable([]byte(s))
	}
	return printable(raw)
}

// text is the record on one line, for errors.
func (r logRecord) text() string {
	if len(r.attrs) == 0 {
		return r.message
	}
	var b strings.Builder
	b.WriteString(r.message)
	for _, a := range r.attrs {
		b.WriteString(" " + a.Key + "=" + a.Value.String())
	}
	return clip(b.String(), maxLine)
}

// printable shows bytes that are no text, or would act on a terminal, as \xNN.
func printable(line []byte) string {
	var b strings.Builder
	for len(line) > 0 {
		r, n := utf8.DecodeRune(line)
		switch {
		case r == '\t' || unicode.IsPrint(r) && !(r == utf8.RuneError && n == 1):
			b.Write(line[:n])
		default:
			for _, c := range line[:n] {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
		line = line[n:]
	}
	return b.String()
}
