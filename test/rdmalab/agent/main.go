//go:build linux

// Command agent is what a virtual host of the lab runs: as process 1 it makes
// the host of what the kernel has (init.go), and then starts itself again as
// the agent that package cmd/hawser/agent describes. It is linked statically
// and stands alone in the initial file system: there is no shell.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	if os.Getpid() == 1 {
		err := boot()
		fmt.Println("lab: the host ends:", err)
		powerOff()
	}
	l, err := net.Listen("tcp", os.Args[1])
	if err == nil {
		secret := os.Getenv(secretVariable)
		_ = os.Unsetenv(secretVariable) // no child's business
		err = serve(l, secret)
	}
	fmt.Fprintln(os.Stderr, "agent:", err)
	os.Exit(1)
}
