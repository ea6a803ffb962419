package streams

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// ListenerName is the listener's name and the key of its address in the
// settings.
const ListenerName = "listen"

// DefaultListen is where a transport listens if nothing is said.
const DefaultListen = "127.0.0.1:0"

// Settings are those that every stream transport has.
type Settings struct {
	Listen           string `json:"listen"`
	Advertise        string `json:"advertise"`
	ConnectTimeoutMS int    `json:"connect_timeout_ms"`
	AcceptWaitMS     int    `json:"accept_wait_ms"`
}

// Numbers are those of them that are numbers.
func (s *Settings) Numbers() []Number {
	return []Number{
		{&s.ConnectTimeoutMS, "connect_timeout_ms", 5000, 1, 600_000, "How long dialing a peer and being welcomed by it may take."},
		{&s.AcceptWaitMS, "accept_wait_ms", 5000, 1, 600_000, "How long an accepted endpoint waits for its peer's connection."},
	}
}

// Number is a setting that is a whole number.
type Number struct {
	Value             *int
	Key               string
	Default, Min, Max int
	Doc               string
}

// Schema is the JSON schema of [Settings] with these numbers, and with more
// properties, each `"name": {...}`.
func Schema(title string, numbers []Number, more ...string) json.RawMessage {
	properties := []string{
		fmt.Sprintf(`"listen": {
      "type": "string", "default": %q,
      "description": "Address to accept connections on, host:port; port 0 takes a free one."
    }`, DefaultListen),
		`"advertise": {
      "type": "string",
      "description": "Address that peers dial instead, host:port or host; without a port the listening one. Needed when listening on all addresses."
    }`,
	}
	for _, n := range numbers {
		properties = append(properties, fmt.Sprintf(`%q: {
      "type": "integer", "minimum": %d, "maximum": %d, "default": %d,
      "description": %q
    }`, n.Key, n.Min, n.Max, n.Default, n.Doc))
	}
	properties = append(properties, more...)
	return fmt.Appendf(nil, `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": %q,
  "type": "object",
  "additionalProperties": false,
  "properties": {
    %s
  }
}`, title, strings.Join(properties, ",\n    "))
}

// Parse reads a transport's settings into a struct that has [Settings] and
// these numbers. The engine has checked the schema; a host that runs the
// transport without an engine has not.
func Parse(transport string, raw json.RawMessage, common *Settings, into any, numbers []Number) error {
	common.Listen = DefaultListen
	for _, n := range numbers {
		*n.Value = n.Default
	}
	if len(raw) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			return sdk.Errorf(sdk.InvalidArgument, "%s settings: %w", transport, err)
		}
	}
	for _, n := range numbers {
		if v := *n.Value; v < n.Min || v > n.Max {
			return sdk.Errorf(sdk.InvalidArgument, "%s settings: %s is %d, must be %d to %d", transport, n.Key, v, n.Min, n.Max)
		}
	}
	return nil
}

// Milliseconds is a setting as a duration.
func Milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }
