// Command docbytes prints the bootstrap messages that docs/protocol.md shows.
package main

import (
	"bytes"
	"fmt"

	"github.com/hawser-transport/hawser/plugins/internal/bootstrap"
	"github.com/hawser-transport/hawser/sdk"
)

func main() {
	a := bootstrap.Token(bytes.Repeat([]byte{0xa1}, 16))
	b := bootstrap.Token(bytes.Repeat([]byte{0xb2}, 16))
	from := sdk.Incarnation(bytes.Repeat([]byte{1}, 16))
	to := sdk.Incarnation(bytes.Repeat([]byte{2}, 16))
	fmt.Printf("offer %x\n", bootstrap.Offer{Token: a, Generation: 7, Instance: 2, From: from, To: to}.Marshal())
	fmt.Printf("answer %x\n", bootstrap.Answer{Token: b, Generation: 7, Instance: 3, Address: "127.0.0.1:7000"}.Marshal())
	fmt.Printf("join %x\n", bootstrap.Join{Kind: bootstrap.Frames, Instance: 3, Generation: 7, Answered: b, Offered: a}.Marshal())
	fmt.Printf("verdict %x\n", bootstrap.Welcome.Marshal())
}
