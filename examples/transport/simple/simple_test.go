package simple_test

import (
	"encoding/json"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/examples/transport/simple"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	sdktest.Run(t, sdktest.Harness{
		New:         func(testing.TB) sdk.Transport { return simple.New() },
		BadSettings: []json.RawMessage{json.RawMessage(`{"lisen": "127.0.0.1:0"}`)},
		Arrive:      time.Second,
	})
}
