package enginetest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/enginetest"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, n *enginetest.Network, f *sdktest.Fabric, address string, opts ...engine.Option) *engine.Engine {
	t.Helper()
	no := false
	e, err := engine.Open(t.Context(), engine.Config{
		Node:         engine.NodeConfig{Name: address},
		Notification: engine.NotificationConfig{RPCFallback: &no},
		Transports:   []engine.TransportConfig{{Name: "memory", InProcess: func() sdk.Transport { return f.New(address) }}},
	}, append(opts, n.At(address))...)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func send(t *testing.T, e *engine.Engine, to string, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	d, err := e.Notify(ctx, to, engine.Notification{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	<-d.Done()
	return d.Err()
}

func TestFaultsOfTheControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, f := enginetest.NewNetwork(), sdktest.NewFabric(sdktest.FabricOptions{})
		a := open(t, n, f, "a:1", enginetest.Incarnation(engine.Incarnation{1}))
		_ = a.Close(t.Context())
		own := engine.Incarnation{15: 7, 3: 1, 8: 1}
		a = open(t, n, f, "a:1", enginetest.Incarnation(own), enginetest.LongestDeadline(10*time.Second))
		b := open(t, n, f, "b:1", enginetest.LongestDeadline(10*time.Second))
		if a.Self().Incarnation != own {
			t.Errorf("incarnation %v", a.Self().Incarnation)
		}
		n.Alias("other:1", "b:1")
		n.Silence("a:1", "b:1", true)
		if err := send(t, a, "other:1", time.Second); !errors.Is(err, engine.NotSent) {
			t.Errorf("silent: %v", err)
		}
		n.Silence("a:1", "b:1", false)
		n.Refuse("b:1", true)
		if err := send(t, a, "b:1", time.Second); !errors.Is(err, engine.NotSent) {
			t.Errorf("refused: %v", err)
		}
		n.Refuse("b:1", false)
		n.Freeze("b:1", true)
		if err := send(t, a, "b:1", time.Second); !errors.Is(err, engine.NotSent) {
			t.Errorf("frozen: %v", err)
		}
		n.Freeze("b:1", false)
		n.Delay("b:1", "a:1", time.Millisecond)
		if err := send(t, a, "other:1", time.Hour); err != nil {
			t.Error(err)
		}
		if b.Stats().Received == 0 {
			t.Error("the alias leads nowhere")
		}
		if c := n.Faults(); c.Held == 0 || c.Refused == 0 || c.Delayed == 0 {
			t.Errorf("%+v", c)
		}
		time.Sleep(time.Minute)
		if s := b.Stats().Sessions; s != 0 {
			t.Errorf("%d sessions after more than twice the longest deadline", s)
		}
		n.Vanish("b:1")
		next := open(t, n, f, "b:1")
		if err := send(t, a, "b:1", time.Hour); err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = b.Close(ctx)
		for _, e := range []*engine.Engine{a, next} {
			if err := e.Close(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
}
