package simverbs

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// maxMessage bounds what one work request may carry.
const maxMessage = 64 << 20

type packetKind uint8

const (
	packetSend packetKind = iota
	packetSendImm
	packetWrite
	packetRead
	packetReadResponse
	packetAck
	packetNak // Status says why
	packetRNR // Timer says how long to wait
)

func (k packetKind) isRequest() bool { return k <= packetRead }

// packet is a message, or the answer to one.
type packet struct {
	Header  header
	From    string // the sending port's name
	To      string
	Payload []byte
}

// header is a packet's fixed part.
type header struct {
	Kind   packetKind
	Status verbs.Status
	Timer  uint8
	Reads  uint8    // that have no response, with this one
	Names  [2]uint8 // lengths of From and To
	MTU    uint16
	QP     uint32 // the one it is for
	PSN    uint32
	Imm    uint32
	RKey   uint32
	Length uint32 // of the message, or of what is to be read
	Bytes  uint32 // of the payload
	At     uint64
	// Sent is when, on the clock that all processes of the machine share. What
	// was sent before a queue pair was ready to receive is not for it, however
	// long it lay in the socket of a frozen process.
	Sent int64
}

func (p *packet) encode() []byte {
	p.Header.Names = [2]uint8{uint8(len(p.From)), uint8(len(p.To))}
	p.Header.Bytes = uint32(len(p.Payload))
	b := make([]byte, 0, binary.Size(p.Header)+len(p.From)+len(p.To)+len(p.Payload))
	b, _ = binary.Append(b, binary.LittleEndian, &p.Header)
	b = append(b, p.From...)
	b = append(b, p.To...)
	return append(b, p.Payload...)
}

func readPacket(r io.Reader) (*packet, error) {
	p := &packet{}
	if err := binary.Read(r, binary.LittleEndian, &p.Header); err != nil {
		return nil, err
	}
	if p.Header.Bytes > maxMessage {
		return nil, fmt.Errorf("simverbs: a packet of %d bytes", p.Header.Bytes)
	}
	from := int(p.Header.Names[0])
	b := make([]byte, from+int(p.Header.Names[1])+int(p.Header.Bytes))
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	to := from + int(p.Header.Names[1])
	p.From, p.To, p.Payload = string(b[:from]), string(b[from:to]), b[to:]
	return p, nil
}
