package tcptransport

import (
	"encoding/json"

	"github.com/hawser-transport/hawser/plugins/internal/streams"
)

type settings struct {
	streams.Settings
	HandshakeTimeoutMS int `json:"handshake_timeout_ms"`
	SendBufferBytes    int `json:"send_buffer_bytes"`
}

func (s *settings) numbers() []streams.Number {
	return append(s.Settings.Numbers(),
		streams.Number{Value: &s.HandshakeTimeoutMS, Key: "handshake_timeout_ms", Default: 2000, Min: 1, Max: 60_000,
			Doc: "How long a new incoming connection has to say what it is for."},
		streams.Number{Value: &s.SendBufferBytes, Key: "send_buffer_bytes", Default: 2 << 20, Min: 128 << 10, Max: 64 << 20,
			Doc: "How much one endpoint holds that the kernel has not taken, before it reports backpressure. Allocated only while it is needed."},
	)
}

func schema() json.RawMessage { return streams.Schema("tcp transport", new(settings).numbers()) }

func parseSettings(raw json.RawMessage) (s settings, err error) {
	err = streams.Parse("tcp", raw, &s.Settings, &s, s.numbers())
	return s, err
}
