// Command hawser-faulty is the tcp transport with faults, as a plugin: frames
// are dropped, doubled, delayed and reordered, by a seed, and counted. Peers
// see the tcp transport. Tests and `hawser demo` use it; packages leave it out.
//
// Its settings are tcp's and `faults`, which says what goes wrong from the
// start and names a unix socket at which that can be changed and the counts be
// read: a request a line, in JSON, is answered with a line; see request and
// answer.
package main

import (
	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
)

func main() { sdk.Serve(newPlugin(tcptransport.New())) }
