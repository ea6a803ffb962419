// Package registry is where a peer's name becomes the address of its control
// plane. A registry holds names and addresses; what a peer is, and whether it
// is alive, the engines tell each other.
//
// Two registries are here: [NewP2P], where the name is the address, and
// [NewStatic], where a table says. A registry that other processes share is a
// package of its own below this one.
package registry

import (
	"context"
	"net"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/sdk"
)

// Self is what an engine registers of itself.
type Self struct {
	Name        string
	Address     string
	Incarnation sdk.Incarnation
}

// Registry resolves names. Its methods are called concurrently and return
// soon after their context ends.
type Registry interface {
	// Resolve returns the address, host:port, of the peer with this name. An
	// engine asks again after a call has failed, and repeats the call only if
	// the address has changed, so an answer must not be older than the call.
	// A name that the registry does not have is [sdk.InvalidArgument]; a
	// registry that does not answer is [sdk.Unavailable].
	Resolve(ctx context.Context, name string) (address string, err error)
	// Register publishes an engine. It is called once, when the engine can be
	// reached, and what it publishes lasts until Close.
	Register(ctx context.Context, self Self) error
	// Close withdraws what was registered. It is idempotent, and nothing is
	// called after it.
	Close() error
}

// checkAddress wants host:port with a port that can be dialled.
func checkAddress(what, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err == nil && len(address) <= 256 && host != "" && utf8.ValidString(host) && !strings.ContainsAny(host, " \t\r\n\x00") {
		if n, err := strconv.ParseUint(port, 10, 16); err == nil && n > 0 {
			return nil
		}
	}
	return sdk.Errorf(sdk.InvalidArgument, "%s %.300q is not host:port", what, address)
}
