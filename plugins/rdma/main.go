// Command hawser-rdma is the rdma transport as a plugin: frames over RDMA's
// reliable connections.
//
// For tests the environment variable HAWSER_RDMA_SIM names a file of package
// simverbs' options: the plugin then runs on that simulated host instead of
// this machine's devices, and says so.
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/ibverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/rdmatransport"
	"github.com/hawser-transport/hawser/sdk"
)

const simulation = "HAWSER_RDMA_SIM"

func main() { sdk.Serve(rdmatransport.New(&later{open: sync.OnceValues(open)})) }

// open finds the provider of verbs.
func open() (verbs.Provider, error) {
	if file := os.Getenv(simulation); file != "" {
		fmt.Fprintf(os.Stderr, "warning: RDMA is simulated, as %s=%s asks for: nothing leaves this machine\n", simulation, file)
		p, err := simverbs.Open(file)
		if err != nil { // the machine lacks nothing
			return nil, sdk.Errorf(sdk.InvalidArgument, "%s: the simulated host: %w", simulation, err)
		}
		return p, nil
	}
	return ibverbs.New(), nil
}

// later opens the provider when it is used first: a plugin that only describes
// itself touches nothing.
type later struct {
	open func() (verbs.Provider, error)
}

// Devices implements [verbs.Provider].
func (l *later) Devices() ([]verbs.Info, error) {
	p, err := l.open()
	if err != nil {
		return nil, err
	}
	return p.Devices()
}

// Open implements [verbs.Provider].
func (l *later) Open(name string) (verbs.Device, error) {
	p, err := l.open()
	if err != nil {
		return nil, err
	}
	return p.Open(name)
}
