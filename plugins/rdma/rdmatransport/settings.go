package rdmatransport

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/sdk"
)

const schema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "rdma transport",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "devices": {
      "type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 64,
      "description": "The devices (mlx5_0) or ports (mlx5_0/1) to use, the preferred first. Without it all that are there."
    },
    "gid_index": {
      "type": "integer", "minimum": -1, "maximum": 65535, "default": -1,
      "description": "Index of the GID that every port uses. -1 chooses: RoCE v2 over v1, global over link-local, IPv4 over IPv6."
    },
    "gids": {
      "type": "object", "additionalProperties": {"type": ["integer", "string"]},
      "description": "The same for single devices or ports: by name, the GID's index or its address."
    },
    "receive_depth": {
      "type": "integer", "minimum": 16, "maximum": 4096, "default": 256,
      "description": "Receive buffers of 64 KiB that the endpoints of a device share. Made with the first endpoint; fewer where the memlock limit does not allow as many."
    },
    "send_buffer_bytes": {
      "type": "integer", "minimum": 1048576, "maximum": 1073741824, "default": 67108864,
      "description": "The most that a device holds of frames without an outcome, before endpoints report backpressure. Made as it is needed."
    },
    "connect_timeout_ms": {
      "type": "integer", "minimum": 1, "maximum": 600000, "default": 10000,
      "description": "How long reaching a peer that has answered may take."
    },
    "accept_wait_ms": {
      "type": "integer", "minimum": 1, "maximum": 600000, "default": 10000,
      "description": "How long an accepted endpoint waits for its peer's first message."
    },
    "stall_timeout_ms": {
      "type": "integer", "minimum": 100, "maximum": 600000, "default": 10000,
      "description": "How long an endpoint may have sends without an outcome, and see no completion, before it is ended."
    },
    "retire_timeout_ms": {
      "type": "integer", "minimum": 100, "maximum": 600000, "default": 30000,
      "description": "How long an endpoint that has ended waits for its outstanding work before its queue pair is destroyed regardless."
    },
    "endpoint": {
      "type": "object",
      "additionalProperties": false,
      "description": "Attributes of the queue pairs.",
      "properties": {
        "path_mtu": {"enum": [256, 512, 1024, 2048, 4096], "default": 4096, "description": "The port's active MTU and the peer's are upper bounds."},
        "send_timeout": {"type": "integer", "minimum": 1, "maximum": 31, "default": 14, "description": "Wait for an acknowledgement: 4.096 us times 2 to this power, 67 ms."},
        "send_retry_count": {"type": "integer", "minimum": 0, "maximum": 7, "default": 7, "description": "Retries of a send that is not acknowledged."},
        "min_rnr_timer": {"type": "integer", "minimum": 0, "maximum": 31, "default": 12, "description": "What a peer waits that found no receive posted, in verbs' code; 12 is 0.64 ms."},
        "rnr_retry": {"type": "integer", "minimum": 0, "maximum": 7, "default": 7, "description": "Pinned to 7, for ever: a missing receive is flow control, and must not end an endpoint."},
        "hop_limit": {"type": "integer", "minimum": 1, "maximum": 255, "default": 16},
        "max_rd_atomic": {"type": "integer", "minimum": 1, "maximum": 128, "default": 16, "description": "Outstanding reads as initiator."},
        "max_dest_rd_atomic": {"type": "integer", "minimum": 1, "maximum": 128, "default": 16, "description": "Outstanding reads as target."},
        "max_qp_wr": {"type": "integer", "minimum": 16, "maximum": 16384, "default": 256, "description": "Depth of the send queue. At most 256 frames of an endpoint are in flight."},
        "max_sge": {"type": "integer", "minimum": 1, "maximum": 16, "default": 4},
        "max_inline": {"type": "integer", "minimum": 0, "maximum": 1024, "default": 64, "description": "Frames of up to this size are copied into the work request."},
        "pkey_index": {"type": "integer", "minimum": 0, "maximum": 65535, "default": 0},
        "traffic_class": {"type": "integer", "minimum": 0, "maximum": 255, "default": 0},
        "service_level": {"type": "integer", "minimum": 0, "maximum": 15, "default": 0},
        "flow_label": {"type": "integer", "minimum": 0, "maximum": 1048575, "default": 0},
        "psn": {"type": "integer", "minimum": 0, "maximum": 16777215, "default": 0, "description": "First packet sequence number, of endpoints for frames: for memory it is random."}
      }
    }
  }
}`

type settings struct {
	Devices          []string           `json:"devices"`
	GIDIndex         int                `json:"gid_index"`
	GIDs             map[string]gidName `json:"gids"`
	ReceiveDepth     int                `json:"receive_depth"`
	SendBufferBytes  int                `json:"send_buffer_bytes"`
	ConnectTimeoutMS int                `json:"connect_timeout_ms"`
	AcceptWaitMS     int                `json:"accept_wait_ms"`
	StallTimeoutMS   int                `json:"stall_timeout_ms"`
	RetireTimeoutMS  int                `json:"retire_timeout_ms"`
	Endpoint         attributes         `json:"endpoint"`
}

// attributes are those of queue pairs.
type attributes struct {
	PathMTU         int `json:"path_mtu"`
	SendTimeout     int `json:"send_timeout"`
	SendRetryCount  int `json:"send_retry_count"`
	MinRNRTimer     int `json:"min_rnr_timer"`
	RNRRetry        int `json:"rnr_retry"`
	HopLimit        int `json:"hop_limit"`
	MaxRDAtomic     int `json:"max_rd_atomic"`
	MaxDestRDAtomic int `json:"max_dest_rd_atomic"`
	MaxQPWR         int `json:"max_qp_wr"`
	MaxSGE          int `json:"max_sge"`
	MaxInline       int `json:"max_inline"`
	PkeyIndex       int `json:"pkey_index"`
	TrafficClass    int `json:"traffic_class"`
	ServiceLevel    int `json:"service_level"`
	FlowLabel       int `json:"flow_label"`
	PSN             int `json:"psn"`
}

// gidName is a GID's index or address.
type gidName struct{ rail.Want }

// UnmarshalJSON implements json.Unmarshaler.
func (g *gidName) UnmarshalJSON(b []byte) error {
	g.Want = rail.Any
	if err := json.Unmarshal(b, &g.Index); err == nil {
		if g.Index < 0 {
			return sdk.Errorf(sdk.InvalidArgument, "the GID index %d is negative", g.Index)
		}
		return nil
	}
	g.Index = -1
	var text string
	if err := json.Unmarshal(b, &text); err != nil {
		return err
	}
	a, err := netip.ParseAddr(text)
	g.Addr = a
	return err
}

// parseSettings fills in the defaults. The engine has checked the schema; a
// host that runs the transport without an engine has not.
func parseSettings(raw json.RawMessage) (settings, error) {
	s := settings{
		GIDIndex: -1, ReceiveDepth: 256, SendBufferBytes: 64 << 20, ConnectTimeoutMS: 10_000,
		AcceptWaitMS: 10_000, StallTimeoutMS: 10_000, RetireTimeoutMS: 30_000,
		Endpoint: attributes{
			PathMTU: 4096, SendTimeout: 14, SendRetryCount: 7, MinRNRTimer: 12, RNRRetry: 7, HopLimit: 16,
			MaxRDAtomic: 16, MaxDestRDAtomic: 16, MaxQPWR: 256, MaxSGE: 4, MaxInline: 64,
		},
	}
	if len(raw) > 0 {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.DisallowUnknownFields()
		if err := d.Decode(&s); err != nil {
			return s, sdk.Errorf(sdk.InvalidArgument, "rdma settings: %w", err)
		}
	}
	e := s.Endpoint
	if e.RNRRetry != 7 {
		return s, sdk.Errorf(sdk.InvalidArgument, "rdma settings: endpoint.rnr_retry is pinned to 7 (retry for ever), not %d: "+
			"on a send/receive queue pair a missing receive is flow control and must never end the endpoint", e.RNRRetry)
	}
	if !verbs.MTU(e.PathMTU).Valid() {
		return s, sdk.Errorf(sdk.InvalidArgument, "rdma settings: endpoint.path_mtu is %d, must be 256, 512, 1024, 2048 or 4096", e.PathMTU)
	}
	if slices.Contains(s.Devices, "") {
		return s, sdk.Errorf(sdk.InvalidArgument, "rdma settings: devices holds an empty name")
	}
	for _, c := range []struct {
		key             string
		value, min, max int
	}{
		{"gid_index", s.GIDIndex, -1, 65535},
		{"receive_depth", s.ReceiveDepth, 16, 4096},
		{"send_buffer_bytes", s.SendBufferBytes, 1 << 20, 1 << 30},
		{"connect_timeout_ms", s.ConnectTimeoutMS, 1, 600_000},
		{"accept_wait_ms", s.AcceptWaitMS, 1, 600_000},
		{"stall_timeout_ms", s.StallTimeoutMS, 100, 600_000},
		{"retire_timeout_ms", s.RetireTimeoutMS, 100, 600_000},
		{"endpoint.send_timeout", e.SendTimeout, 1, 31},
		{"endpoint.send_retry_count", e.SendRetryCount, 0, 7},
		{"endpoint.min_rnr_timer", e.MinRNRTimer, 0, 31},
		{"endpoint.hop_limit", e.HopLimit, 1, 255},
		{"endpoint.max_rd_atomic", e.MaxRDAtomic, 1, 128},
		{"endpoint.max_dest_rd_atomic", e.MaxDestRDAtomic, 1, 128},
		{"endpoint.max_qp_wr", e.MaxQPWR, 16, 16384},
		{"endpoint.max_sge", e.MaxSGE, 1, 16},
		{"endpoint.max_inline", e.MaxInline, 0, 1024},
		{"endpoint.pkey_index", e.PkeyIndex, 0, 65535},
		{"endpoint.traffic_class", e.TrafficClass, 0, 255},
		{"endpoint.service_level", e.ServiceLevel, 0, 15},
		{"endpoint.flow_label", e.FlowLabel, 0, 1<<20 - 1},
		{"endpoint.psn", e.PSN, 0, 1<<24 - 1},
	} {
		if c.value < c.min || c.value > c.max {
			return s, sdk.Errorf(sdk.InvalidArgument, "rdma settings: %s is %d, must be %d to %d", c.key, c.value, c.min, c.max)
		}
	}
	return s, nil
}

// rank is a port's place in the list of those allowed; ok is false if it is
// not.
func (s *settings) rank(device, port string) (rank int, ok bool) {
	if len(s.Devices) == 0 {
		return 0, true
	}
	i := slices.IndexFunc(s.Devices, func(name string) bool { return name == device || name == port })
	return i, i >= 0
}

// absent returns the names in the list of devices that none of these has.
func (s *settings) absent(infos []verbs.Info) (names []string) {
	for _, name := range s.Devices {
		device, _, _ := strings.Cut(name, "/")
		if !slices.ContainsFunc(infos, func(i verbs.Info) bool { return i.Name == device }) {
			names = append(names, name)
		}
	}
	return names
}

// gid is what the user wants of a port's GID.
func (s *settings) gid(device, port string) rail.Want {
	for _, name := range []string{port, device} {
		if g, ok := s.GIDs[name]; ok {
			return g.Want
		}
	}
	return rail.Want{Index: s.GIDIndex}
}

func milliseconds(n int) time.Duration { return time.Duration(n) * time.Millisecond }
