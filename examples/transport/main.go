// Command transport is the smallest complete Hawser transport: frames over TCP
// connections, without any cleverness. It is where a transport's author
// starts: read package simple, then change how it carries.
package main

import (
	"github.com/hawser-transport/hawser/examples/transport/simple"
	"github.com/hawser-transport/hawser/sdk"
)

func main() { sdk.Serve(simple.New()) }
