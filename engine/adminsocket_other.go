//go:build !unix

package engine

import (
	"net"

	"github.com/hawser-transport/hawser/sdk"
)

func listenPrivately(string) (net.Listener, error) {
	return nil, sdk.Errorf(sdk.Unsupported, "not on this platform")
}

func lockFolder(string) (unlock func(), err error) { return func() {}, nil }
