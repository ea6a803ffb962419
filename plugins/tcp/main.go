// Command hawser-tcp is the tcp transport as a plugin: frames and transfers over
// TCP.
package main

import (
	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
)

func main() { sdk.Serve(tcptransport.New()) }
