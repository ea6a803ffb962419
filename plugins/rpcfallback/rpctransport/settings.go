package rpctransport

import (
	"encoding/json"

	"github.com/hawser-transport/hawser/plugins/internal/streams"
)

// settings has none beside those of every stream transport.
type settings = streams.Settings

func schema() json.RawMessage {
	return streams.Schema("rpcfallback transport", new(settings).Numbers())
}

func parseSettings(raw json.RawMessage) (s settings, err error) {
	err = streams.Parse("rpcfallback", raw, &s, &s, s.Numbers())
	return s, err
}
