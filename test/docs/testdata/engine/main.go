// Command docbytes prints the engine's frames that docs/protocol.md shows.
package main

import (
	"fmt"

	"github.com/hawser-transport/hawser/engine/internal/frame"
)

func main() {
	const session, epoch = 0x1122334455667788, 0x99AABBCCDDEEFF00
	raw := frame.AppendRaw(nil, "ab", []byte("xyz"))
	fmt.Printf("raw %x\n", raw)
	for _, f := range []struct {
		name    string
		h       frame.Header
		payload []byte
	}{
		{"notify-proto1", frame.Header{Type: frame.NotifyCompat, Session: session, Seq: 5}, raw},
		{"notify", frame.Header{Type: frame.NotifyCompat, Flags: frame.NeedsAck, Session: session, Epoch: epoch, Seq: 5, Ack: 3}, raw},
		{"credit-request", frame.Header{Type: frame.CreditRequest, Flags: frame.NeedsAck, Session: session, Epoch: epoch, Ack: 42}, nil},
		{"session-close", frame.Header{Type: frame.SessionClose, Session: session, Epoch: epoch}, nil},
		{"ctrl-ack", frame.Header{Type: frame.CtrlAck, Session: session, Epoch: epoch, Seq: 3, Ack: 41}, frame.Ack{
			Cumulative: 41, RoomSeq: 1065, RoomBytes: 8 << 20,
			Ranges: []frame.Range{{First: 43, Last: 43}, {First: 45, Last: 50}},
		}.AppendPayload(nil)},
		{"ctrl-ack-no-room", frame.Header{Type: frame.CtrlAck, Session: session, Epoch: epoch, Seq: 4, Ack: 50},
			frame.Ack{Cumulative: 50, RoomSeq: 50}.AppendPayload(nil)},
	} {
		fmt.Printf("%s %x\n", f.name, f.h.Append(nil, f.payload))
	}
}
