package tcptransport

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestConformance(t *testing.T) { sdktest.Run(t, harness()) }

func TestConformanceUnderTLS(t *testing.T) {
	h := harness()
	h.Secure = true
	sdktest.Run(t, h)
}

func harness() sdktest.Harness {
	return sdktest.Harness{
		New:      func(testing.TB) sdk.Transport { return New() },
		Settings: json.RawMessage(`{"accept_wait_ms": 1000, "connect_timeout_ms": 1000}`),
		BadSettings: []json.RawMessage{
			json.RawMessage(`{"lisen": "127.0.0.1:0"}`),
			json.RawMessage(`{"listen": 7}`),
			json.RawMessage(`{"listen": "127.0.0.1:0", "advertise": "a:b:c"}`),
			json.RawMessage(`{"accept_wait_ms": 0}`),
			json.RawMessage(`{"send_buffer_bytes": 1}`),
		},
		Arrive: time.Second,
	}
}
