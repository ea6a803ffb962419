package rpctransport

import (
	"encoding/binary"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	// maxFrame is the largest the contract knows: oversize notifications come
	// this way.
	maxFrame = sdk.MaxFrameLimit

	// packBytes and packFrames close a pack; one frame of any size fits in an
	// empty one. They also bound what a receiver takes at a time.
	packBytes  = 256 << 10
	packFrames = 4096

	// maxMessage bounds a gRPC message: the largest pack and its surroundings.
	maxMessage = maxFrame + packBytes
)

// pack is the content of one message.
type pack struct {
	b      []byte
	frames int
}

// room says whether a frame of n bytes still belongs in the pack.
func (p *pack) room(n int) bool {
	return p.frames == 0 || p.frames < packFrames && len(p.b)+n+binary.MaxVarintLen32 <= packBytes
}

// add returns by how much the pack has grown.
func (p *pack) add(data []byte) int {
	before := len(p.b)
	p.b = binary.AppendUvarint(p.b, uint64(len(data)))
	p.b = append(p.b, data...)
	p.frames++
	return len(p.b) - before
}

// unpack splits a peer's pack into frames that alias it.
func unpack(b []byte, frames [][]byte) ([][]byte, error) {
	for len(b) > 0 {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) || n > maxFrame || len(frames) == packFrames {
			return frames, sdk.Errorf(sdk.Unavailable, "peer broke the protocol: malformed pack")
		}
		end := used + int(n)
		frames = append(frames, b[used:end:end])
		b = b[end:]
	}
	return frames, nil
}
