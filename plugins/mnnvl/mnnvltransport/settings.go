//go:build linux

package mnnvltransport

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/sdk"
)

type settings struct {
	streams.Settings
	// Devices names the GPUs to use, by ordinal or UUID; all if empty.
	Devices            []string `json:"devices"`
	HandshakeTimeoutMS int      `json:"handshake_timeout_ms"`
	MappingIdleSecs    int      `json:"mapping_idle_secs"`
	Streams            int      `json:"streams"`
}

func (s *settings) numbers() []streams.Number {
	return append(s.Settings.Numbers(),
		streams.Number{Value: &s.HandshakeTimeoutMS, Key: "handshake_timeout_ms", Default: 2000, Min: 1, Max: 60_000,
			Doc: "How long a new incoming connection has to say what it is for."},
		streams.Number{Value: &s.MappingIdleSecs, Key: "mapping_idle_secs", Default: 60, Min: 1, Max: 86_400,
			Doc: "How long memory stays mapped that no op uses. While it is mapped, a provider's memory is not freed."},
		streams.Number{Value: &s.Streams, Key: "streams", Default: 2, Min: 1, Max: 16,
			Doc: "CUDA streams of each GPU, over which copies are spread."},
	)
}

const devicesProperty = `"devices": {
      "type": "array", "maxItems": 64, "items": {"type": "string", "minLength": 1},
      "description": "The GPUs to use: ordinals (\"0\") or UUIDs (\"GPU-...\"), the first one for host memory. Empty: all that the process may see."
    }`

func schema() json.RawMessage {
	return streams.Schema("mnnvl transport", new(settings).numbers(), devicesProperty)
}

func parseSettings(raw json.RawMessage) (s settings, err error) {
	err = streams.Parse(Name, raw, &s.Settings, &s, s.numbers())
	if err == nil && slices.Contains(s.Devices, "") {
		err = sdk.Errorf(sdk.InvalidArgument, "mnnvl settings: devices has an empty name")
	}
	return s, err
}

// choose returns the devices that the settings name, in their order, and the
// names that are none's.
func (s *settings) choose(infos []cuda.Info) (chosen []cuda.Info, absent []string) {
	if len(s.Devices) == 0 {
		return infos, nil
	}
	for _, name := range s.Devices {
		i := slices.IndexFunc(infos, func(i cuda.Info) bool {
			return strings.EqualFold(name, i.UUID.String()) || name == strconv.Itoa(i.Ordinal)
		})
		switch {
		case i < 0:
			absent = append(absent, name)
		case !slices.Contains(chosen, infos[i]):
			chosen = append(chosen, infos[i])
		}
	}
	return chosen, absent
}
