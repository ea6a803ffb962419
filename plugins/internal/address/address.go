// Package address opens and names what a stream transport listens on, and
// checks the addresses that peers publish.
package address

import (
	"context"
	"errors"
	"net"
	"strconv"

	"github.com/hawser-transport/hawser/sdk"
)

// Attribute is the key under which an instance publishes its address.
const Attribute = "addr"

// Max bounds an address: a DNS name and a port.
const Max = 255

// Open returns the listener that the engine lent, or opens one if it lent
// none.
func Open(ctx context.Context, cfg sdk.Config, name, addr string) (net.Listener, error) {
	if ln := cfg.Listeners[name]; ln != nil {
		return ln, nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, sdk.Errorf(sdk.Unavailable, "cannot listen on %s: %w", addr, err)
	}
	return ln, nil
}

// Published returns the address to publish for a listener: the advertised one,
// with the listener's port where it has none, else the listener's own.
func Published(ln net.Addr, advertise string) (string, error) {
	host, port, err := net.SplitHostPort(ln.String())
	if err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "cannot publish the listening address %s: %w", ln, err)
	}
	if advertise == "" {
		if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
			return "", sdk.Errorf(sdk.InvalidArgument, "listening on %s, which is no address that peers can dial: set advertise", ln)
		}
		return ln.String(), nil
	}
	h, p, err := net.SplitHostPort(advertise)
	if err != nil {
		var bad *net.AddrError
		if !errors.As(err, &bad) || bad.Err != "missing port in address" {
			return "", sdk.Errorf(sdk.InvalidArgument, "advertise %q: %w", advertise, err)
		}
		h, p = advertise, "0"
	}
	if p == "0" || p == "" {
		p = port
	}
	published := net.JoinHostPort(h, p)
	if err := Check(published); err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "advertise %q: %w", advertise, err)
	}
	return published, nil
}

// Check says whether addr is something that can be dialed.
func Check(addr string) error {
	if len(addr) > Max {
		return sdk.Errorf(sdk.InvalidArgument, "an address of %d bytes is too long", len(addr))
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return sdk.Errorf(sdk.InvalidArgument, "address %q: %w", addr, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if host == "" || err != nil || n == 0 {
		return sdk.Errorf(sdk.InvalidArgument, "address %q wants the form host:port with a port number", addr)
	}
	return nil
}

// Remote returns the address that a peer publishes.
func Remote(remote sdk.Attributes) (string, error) {
	addr, ok := remote[Attribute]
	if !ok {
		return "", sdk.Errorf(sdk.InvalidArgument, "the peer publishes no %q", Attribute)
	}
	if err := Check(addr); err != nil {
		return "", err
	}
	return addr, nil
}

// Paths returns the one path to a peer.
func Paths(remote sdk.Attributes) ([]string, error) {
	if _, err := Remote(remote); err != nil {
		return nil, err
	}
	return []string{sdk.MainPath}, nil
}

// OnPath says whether the target names the one path there is.
func OnPath(t sdk.Target) error {
	if t.Path != sdk.MainPath {
		return sdk.Errorf(sdk.InvalidArgument, "there is no path %q, only %q", t.Path, sdk.MainPath)
	}
	return nil
}
