package sdk

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"

	"github.com/hashicorp/go-hclog"
)

// newLogger writes one JSON object per line: time, level, msg and the
// attributes. The host reads the lines and logs them again as its own.
func newLogger(w io.Writer, level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: readable}))
}

// readable has addresses and the like printed as people write them: as JSON
// they are objects.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	switch v := a.Value.Any().(type) {
	case error, json.Marshaler, encoding.TextMarshaler:
	case fmt.Stringer:
		a.Value = slog.StringValue(fmt.Sprint(v)) // survives a nil one
	}
	return a
}

// newFrameworkLogger gives go-plugin's complaints the same form.
func newFrameworkLogger(log *slog.Logger) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "go-plugin", Level: hclog.Warn, DisableTime: true,
		Output: frameworkLog{log},
	})
}

type frameworkLog struct{ log *slog.Logger }

func (f frameworkLog) Write(line []byte) (int, error) {
	f.log.Warn(string(bytes.TrimSpace(line)))
	return len(line), nil
}
