package rdmatransport

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestConformance(t *testing.T) {
	f := newFabric(t)
	sdktest.Run(t, sdktest.Harness{
		New:      func(t testing.TB) sdk.Transport { return f.transport(t, f.options()) },
		Settings: json.RawMessage(`{"accept_wait_ms": 1000, "endpoint": {"send_timeout": 19}}`),
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"device": ["sim0"]}`),
			json.RawMessage(`{"devices": "sim0"}`),
			json.RawMessage(`{"devices": [""]}`),
			json.RawMessage(`{"gids": {"sim0": "nonsense"}}`),
			json.RawMessage(`{"gids": {"sim0": -1}}`),
			json.RawMessage(`{"receive_depth": 1}`),
			json.RawMessage(`{"endpoint": {"path_mtu": 1500}}`),
			json.RawMessage(`{"endpoint": {"rnr_retry": 6}}`),
			json.RawMessage(`{"endpoint": {"send_timeout": 0}}`),
			json.RawMessage(`{"endpoint": {"psn": 16777216}}`),
		},
		Arrive: time.Second,
	})
}

func TestLoad(t *testing.T) {
	f := newFabric(t)
	rigtest.Load(t, func() sdk.Transport { return f.transport(t, f.options()) }, 3000, maxFrame)
}
