// Command hawser-rdma-faulty is the rdma transport with faults in its verbs, as
// a plugin: queue pairs move to ERR or RESET behind the transport's back, and
// the goroutines that poll completions are held. Peers see the rdma transport.
// Tests and `hawser demo` use it; packages leave it out.
//
// Error moves queue pairs as soon as a message or an op of memory is posted, so
// that one is on its way; reset moves them at once. From hold to release completions wait with the
// device, unless somebody else than its poller polls them: an endpoint that ends
// does.
//
// HAWSER_RDMA_FAULTS names the unix socket at which faults are asked for, and
// HAWSER_RDMA_SIM the simulated host, as for hawser-rdma. The program is also
// the client, for scripts and for hosts where nothing else speaks to sockets:
//
//	hawser-rdma-faulty ctl SOCKET connected|error|reset|hold|release
//	hawser-rdma-faulty sim DIR host NAME ADDRESS...
//	hawser-rdma-faulty sim DIR port-down|port-up HOST RAIL
//	hawser-rdma-faulty sim DIR cut|heal HOST RAIL HOST RAIL...
//	hawser-rdma-faulty sim DIR accounts HOST
package main

import (
	"fmt"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/ibverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/rdmatransport"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	simulation = "HAWSER_RDMA_SIM"
	faults     = "HAWSER_RDMA_FAULTS"
)

func main() {
	if len(os.Args) > 1 {
		out, err := client(os.Args[1:])
		fmt.Print(out)
		if err != nil {
			fmt.Fprintln(os.Stderr, "hawser-rdma-faulty:", err)
			os.Exit(1)
		}
		return
	}
	sdk.Serve(rdmatransport.New(&provider{open: sync.OnceValues(open)}))
}

// open finds the provider of verbs and begins to listen for faults.
func open() (*opened, error) {
	p := ibverbs.New()
	if file := os.Getenv(simulation); file != "" {
		host, err := simverbs.Open(file)
		if err != nil {
			return nil, sdk.Errorf(sdk.InvalidArgument, "%s: the simulated host: %w", simulation, err)
		}
		p = host
	}
	o := &opened{Provider: p, book: newBook()}
	if path := os.Getenv(faults); path != "" {
		return o, listen(path, o.book)
	}
	return o, nil
}
