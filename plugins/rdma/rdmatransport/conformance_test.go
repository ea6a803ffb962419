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
		Inbox:    true, // done is what the peer's device has, landed or handed over
		New:      func(t testing.TB) sdk.Transport { return f.transport(t, f.options()) },
		Settings: json.RawMessage(`{"accept_wait_ms": 1000, "endpoint": {"send_timeout": 17}}`),
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
		Lose: func(t testing.TB, tr sdk.Transport, _ string, lost bool) {
			f.lose(t, tr.(*simulated).host, 0, lost)
		},
		Arrive: time.Second,
	})
}

// fresh makes transports on hosts of one fabric.
func fresh(t testing.TB) func() sdk.Transport {
	f := newFabric(t)
	return func() sdk.Transport {
		s := f.transport(t, f.options())
		s.settings = patient
		return s
	}
}

func TestLoad(t *testing.T) { rigtest.Load(t, fresh(t), 800, maxFrame) }
