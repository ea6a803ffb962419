package rpctransport

import (
	"encoding/binary"

	"github.com/hawser-transport/hawser/sdk"
)

const (
	// maxFrame is the largest the contract knows: oversize notifications come
	// this way.
	maxFrame = sdk.MaxFrameLimit

	// maxPacked is the largest frame that travels in one piece. Larger ones go
	// in chunks of chunkBytes, at most one in a message, so that they hold up
	// the others for a chunk and not for all of their length.
	maxPacked  = sdk.OvertakenFrame
	chunkBytes = 128 << 10

	// packBytes and packFrames close a pack. They also bound what a receiver
	// takes at a time.
	packBytes  = 256 << 10
	packFrames = 4096

	// maxMessage bounds a gRPC message: the largest pack, a chunk, and their
	// surroundings.
	maxMessage = packBytes + chunkBytes + 4<<10

	// firstPiece and lastPiece bound the room that a pack makes for frames yet
	// to come.
	firstPiece = 256
	lastPiece  = 32 << 10
)

// pack is frames that go into one message. What was written stays where it is:
// a pack grows by pieces.
type pack struct {
	pieces [][]byte // what is written goes into the last one
	size   int
	ids    []uint64
}

// room says whether a frame of n bytes still belongs in the pack.
func (p *pack) room(n int) bool {
	return len(p.ids) < packFrames && p.size+n+binary.MaxVarintLen32 <= packBytes
}

// add returns by how much the pack has grown.
func (p *pack) add(id uint64, data []byte) int {
	var head [binary.MaxVarintLen32]byte
	n := binary.PutUvarint(head[:], uint64(len(data)))
	need, last := n+len(data), len(p.pieces)-1
	if last < 0 || cap(p.pieces[last])-len(p.pieces[last]) < need {
		p.pieces = append(p.pieces, make([]byte, 0, max(need, min(max(firstPiece, 2*p.size), lastPiece))))
		last++
	}
	p.pieces[last] = append(append(p.pieces[last], head[:n]...), data...)
	p.size += need
	p.ids = append(p.ids, id)
	return need
}

// unpack splits a peer's pack into frames that alias it.
func unpack(b []byte, frames [][]byte) ([][]byte, error) {
	for len(b) > 0 {
		n, used := binary.Uvarint(b)
		if used <= 0 || n > uint64(len(b)-used) || n > maxPacked || len(frames) == packFrames {
			return frames, errMalformed("pack")
		}
		end := used + int(n)
		frames = append(frames, b[used:end:end])
		b = b[end:]
	}
	return frames, nil
}

func errMalformed(what string) error {
	return sdk.Errorf(sdk.Unavailable, "peer broke the protocol: malformed %s", what)
}
