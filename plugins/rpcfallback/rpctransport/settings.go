package rpctransport

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// listenerName is the listener's name and the key of its address in the
// settings.
const listenerName = "listen"

const defaultListen = "127.0.0.1:0"

const schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "rpcfallback transport",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "listen": {
      "type": "string", "default": "127.0.0.1:0",
      "description": "Address to accept connections on, host:port; port 0 takes a free one."
    },
    "advertise": {
      "type": "string",
      "description": "Address that peers dial instead, host:port or host; without a port the listening one. Needed when listening on all addresses."
    },
    "connect_timeout_ms": {
      "type": "integer", "minimum": 1, "maximum": 600000, "default": 5000,
      "description": "How long dialing a peer and being welcomed by it may take."
    },
    "accept_wait_ms": {
      "type": "integer", "minimum": 1, "maximum": 600000, "default": 5000,
      "description": "How long an accepted endpoint waits for its peer's connection."
    }
  }
}`

type settings struct {
	Listen           string `json:"listen"`
	Advertise        string `json:"advertise"`
	ConnectTimeoutMS int    `json:"connect_timeout_ms"`
	AcceptWaitMS     int    `json:"accept_wait_ms"`
}

// parseSettings fills in the defaults. The engine has checked the schema; a
// host that runs the transport without an engine has not.
func parseSettings(raw json.RawMessage) (settings, error) {
	s := settings{Listen: defaultListen, ConnectTimeoutMS: 5000, AcceptWaitMS: 5000}
	if len(raw) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			return s, sdk.Errorf(sdk.InvalidArgument, "rpcfallback settings: %w", err)
		}
	}
	for _, c := range []struct {
		key             string
		value, min, max int
	}{
		{"connect_timeout_ms", s.ConnectTimeoutMS, 1, 600_000},
		{"accept_wait_ms", s.AcceptWaitMS, 1, 600_000},
	} {
		if c.value < c.min || c.value > c.max {
			return s, sdk.Errorf(sdk.InvalidArgument, "rpcfallback settings: %s is %d, must be %d to %d", c.key, c.value, c.min, c.max)
		}
	}
	return s, nil
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }
