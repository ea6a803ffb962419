// Command docbytes prints the link's records that docs/protocol.md shows.
package main

import (
	"fmt"
	"io"

	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// packets passes on what a carrier sends.
type packets chan []byte

func (p packets) Send(b []byte) error   { p <- append([]byte(nil), b...); return nil }
func (p packets) Recv() ([]byte, error) { return nil, io.EOF }
func (p packets) Close() error          { return nil }

func main() {
	var runs link.Runs
	for id := range uint64(3) {
		runs.Add(id+1, 2, 0)
	}
	runs.Add(4, 1, 5)
	for _, r := range []struct {
		name string
		rec  link.Record
	}{
		{"record-send", link.Record{Type: link.Send, Endpoint: 7, ID: 9, Payload: []byte("abc")}},
		{"record-complete", link.Record{Type: link.Complete, Endpoint: 7, Payload: runs.Payload()}},
		{"record-ended", link.Record{Type: link.Ended, Endpoint: 7, ID: 1, Payload: []byte("x")}},
		{"record-ping", link.Record{Type: link.Ping, ID: 5}},
		{"record-window", link.Record{Type: link.Window, Endpoint: 7, ID: 1 << 20}},
	} {
		p := make(packets, 1)
		c := link.NewStream(p, 1<<16)
		if _, err := c.Send([]link.Record{r.rec}, link.Wait); err != nil {
			panic(err)
		}
		fmt.Printf("%s %x\n", r.name, <-p)
		c.Close()
	}
}
