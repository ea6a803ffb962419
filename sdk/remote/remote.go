// Package remote is the host's end of a plugin's process boundary: it makes a
// plugin process look like the [sdk.Transport] that runs in it. It launches
// and kills nothing.
//
// Whoever uses it gets the contract of package sdk, whatever the plugin does:
// every answer is checked and bounded, every call ends, every endpoint gets
// its end once, and a plugin that breaks the rules ends its own instance and
// nothing else. A plugin that lies plausibly about an outcome is believed.
//
// go-plugin's plugin set and handshake are the only foreign types in exported
// signatures.
package remote

import (
	"context"

	"github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk"
)

// Name is the name to dispense from the plugin set.
const Name = "transport"

// Handshake is what host and plugin must agree on before anything else.
func Handshake() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{
		ProtocolVersion:  sdk.ContractVersion,
		MagicCookieKey:   sdk.PluginCookieKey,
		MagicCookieValue: sdk.PluginCookieValue,
	}
}

// Plugins is the plugin set for one plugin process. Dispensing [Name] from it
// yields a *[Transport] that has to be opened. The label stands for the plugin
// in errors and logs: the configured transport's name.
func Plugins(label string) plugin.PluginSet {
	return plugin.PluginSet{Name: &client{label: label}}
}

// client makes the proxy. It is a GRPCPlugin.
type client struct {
	plugin.NetRPCUnsupportedPlugin
	label string
}

func (c *client) GRPCServer(*plugin.GRPCBroker, *grpc.Server) error {
	return sdk.Errorf(sdk.Unsupported, "the host's end is no server")
}

// GRPCClient's context ends when go-plugin has seen the process exit.
func (c *client) GRPCClient(ctx context.Context, _ *plugin.GRPCBroker, conn *grpc.ClientConn) (any, error) {
	return newTransport(ctx, c.label, conn), nil
}
