// Package enginetest gives tests two engines in one process.
package enginetest

import (
	"context"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// Pair opens two engines, named a and b, over the transport that makes for
// each, and closes them when the test ends. Peer is b's address.
func Pair(t *testing.T, makes func(node string) engine.TransportConfig) (a, b *engine.Engine, peer string) {
	t.Helper()
	a, b = open(t, "a", makes), open(t, "b", makes)
	return a, b, b.Self().Address
}

func open(t *testing.T, name string, makes func(string) engine.TransportConfig) *engine.Engine {
	t.Helper()
	e, err := engine.Open(t.Context(), engine.Config{
		Node:         engine.NodeConfig{Name: name},
		Notification: engine.NotificationConfig{RPCFallback: new(false)},
		Transports:   []engine.TransportConfig{makes(name)},
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
