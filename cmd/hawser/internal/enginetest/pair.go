// Package enginetest gives tests two engines in one process.
package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Pair opens two engines over a transport in memory, and closes them when the
// test ends. The second one's address is returned with them.
func Pair(t *testing.T) (a, b *engine.Engine, peer string, fabric *sdktest.Fabric) {
	t.Helper()
	fabric = sdktest.NewFabric(sdktest.FabricOptions{})
	a, b = open(t, fabric, "a"), open(t, fabric, "b")
	return a, b, b.Self().Address, fabric
}

func open(t *testing.T, fabric *sdktest.Fabric, name string) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), engine.Config{
		Node:         engine.NodeConfig{Name: name},
		Notification: engine.NotificationConfig{RPCFallback: new(false)},
		Transports: []engine.TransportConfig{
			{Name: "memory", InProcess: func() sdk.Transport { return fabric.New(name) }},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = e.Close(ctx)
	})
	return e
}
