// Command hawser-rpcfallback is the rpcfallback transport as a plugin: frames
// and transfers over gRPC, the last resort and the way for large payloads.
package main

import (
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport"
	"github.com/hawser-transport/hawser/sdk"
)

func main() { sdk.Serve(rpctransport.New()) }
