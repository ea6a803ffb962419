package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// hawserClient is an engine that sends to an engine of another process, each
// with its plugin processes.
type hawserClient struct {
	e    *engine.Engine
	peer *child
}

func openEngine(bin, transport, keys, name string) (*engine.Engine, error) {
	no := false
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return engine.Open(ctx, engine.Config{
		Node:         engine.NodeConfig{Name: name},
		Plugins:      engine.PluginsConfig{Dir: bin},
		Notification: engine.NotificationConfig{RPCFallback: &no},
		Transports:   []engine.TransportConfig{{Name: transport}},
		Security:     securedBy(keys),
	})
}

// openHawser measures under TLS if keys names a directory of them.
func openHawser(bin, transport, keys string) (client, error) {
	peer, err := self("hawser", bin, transport, keys)
	if err != nil {
		return nil, err
	}
	e, err := openEngine(bin, transport, keys, "sender")
	if err != nil {
		peer.stop()
		return nil, err
	}
	return &hawserClient{e, peer}, nil
}

func (c *hawserClient) RoundTrip(payload []byte) error {
	ctx := context.Background()
	if _, err := c.e.Notify(ctx, c.peer.address, engine.Notification{Name: "ping", Payload: payload}); err != nil {
		return err
	}
	_, err := c.e.Receive(ctx)
	return err
}

func (c *hawserClient) Send(payload []byte) (func() error, error) {
	d, err := c.e.Notify(context.Background(), c.peer.address, engine.Notification{Name: "data", Payload: payload})
	if err != nil {
		return nil, err
	}
	return func() error { return d.Wait(context.Background()) }, nil
}

func (c *hawserClient) Close() {
	shut(c.e)
	c.peer.stop()
}

func shut(e *engine.Engine) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = e.Close(ctx)
}

// serveHawser is the peer: it answers pings and counts the rest.
func serveHawser(args []string) error {
	e, err := openEngine(args[0], args[1], args[2], "receiver")
	if err != nil {
		return err
	}
	defer shut(e)
	fmt.Println(e.Self().Address)
	go func() {
		for {
			r, err := e.Receive(context.Background())
			if err != nil {
				return
			}
			if r.Name == "ping" {
				_, _ = e.Notify(context.Background(), r.From.Address, engine.Notification{Name: "pong", Payload: r.Payload})
			}
		}
	}()
	untilEOF()
	return nil
}
