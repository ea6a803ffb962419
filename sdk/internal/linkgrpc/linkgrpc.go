// Package linkgrpc carries the link's packets over the Link call of the
// control channel. It is the same for both ends.
package linkgrpc

import (
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// Stream is either end of a Link call.
type Stream interface {
	Send(*pb.Packet) error
	Recv() (*pb.Packet, error)
}

// New makes a packet stream of one end of a Link call. end ends the call, so
// that what blocks in it returns; it is called at least once.
func New(s Stream, end func()) link.PacketStream {
	return &packets{stream: s, end: end}
}

type packets struct {
	stream Stream
	end    func()
	out    pb.Packet // Send is called by one goroutine
}

func (p *packets) Send(b []byte) error {
	p.out.Records = b
	err := ended(p.stream.Send(&p.out))
	p.out.Records = nil
	return err
}

func (p *packets) Recv() ([]byte, error) {
	in, err := p.stream.Recv()
	if err != nil {
		return nil, ended(err)
	}
	return in.GetRecords(), nil
}

func (p *packets) Close() error {
	p.end()
	return nil
}

// ended makes io.EOF of the ways in which gRPC says that the other end has
// gone.
func ended(err error) error {
	switch status.Code(err) {
	case codes.Canceled, codes.Unavailable:
		return io.EOF
	}
	return err
}
