package benchnode

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"sync"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
	"github.com/hawser-transport/hawser/engine"
)

// shared is the region of a node between which and the other node's bytes are
// moved, by transfers and by the plain program.
type shared struct {
	n *lab.Node

	mu     sync.Mutex
	region *engine.Region
	plain  *plainServer
}

// memoryInfo tells where a node's memory is, for transfers and for the plain
// program.
type memoryInfo struct {
	Address uint64
	Plain   string
}

type fillArgs struct {
	Seed   uint64
	Length int
}

type moveArgs struct {
	Peer          string
	Address       uint64 // of the peer's memory
	Plain         string // the peer's plain program: it moves, not the engine
	Write         bool
	Size          int
	Count, Window int
	OneAtATime    int // how many are measured one at a time before
}

func (m *shared) handlers() map[string]lab.Handler {
	return map[string]lab.Handler{
		"allocate": lab.With(m.allocate),
		"fill": lab.With(func(_ context.Context, a fillArgs) (any, error) {
			b, err := m.bytes(a.Length)
			if err == nil {
				Fill(b, a.Seed)
			}
			return nil, err
		}),
		"sum": lab.With(func(_ context.Context, length int) (any, error) {
			b, err := m.bytes(length)
			return crc32.Checksum(b, castagnoli), err
		}),
		"move": lab.With(m.move),
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Fill fills memory with what only the seed tells.
func Fill(b []byte, seed uint64) {
	var key [32]byte
	key[0], key[1] = byte(seed), byte(seed>>8)
	_, _ = rand.NewChaCha8(key).Read(b) // it cannot fail
}

func (m *shared) allocate(_ context.Context, size int) (any, error) {
	e, err := m.n.Engine()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.region != nil {
		return nil, errors.New("the memory is there already")
	}
	if m.region, err = e.AllocateHost(size, engine.RegionOptions{}); err != nil {
		return nil, err
	}
	if m.plain, err = servePlain(m.region.Bytes()); err != nil {
		return nil, err
	}
	return memoryInfo{m.region.Address(), m.plain.address()}, nil
}

func (m *shared) bytes(length int) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.region == nil || length < 0 || uint64(length) > m.region.Len() {
		return nil, fmt.Errorf("there are no %d bytes of memory", length)
	}
	return m.region.Bytes()[:length], nil
}

func (m *shared) move(ctx context.Context, a moveArgs) (any, error) {
	e, err := m.n.Engine()
	if err != nil {
		return nil, err
	}
	if _, err := m.bytes(a.Size * a.Window); err != nil {
		return nil, err
	}
	if a.Plain != "" {
		p, err := dialPlain(a.Plain, m.region.Bytes())
		if err != nil {
			return nil, err
		}
		defer p.close()
		return Move(ctx, a.Size, a.Count, a.Window, a.OneAtATime, func(slot int) (Waiter, error) { return p.begin(a.Write, slot, a.Size) })
	}
	segment, err := e.OpenSegment(ctx, a.Peer)
	if err != nil {
		return nil, err
	}
	defer segment.Close() //nolint:errcheck // it returns nil
	kind := engine.Read
	if a.Write {
		kind = engine.Write
	}
	return Move(ctx, a.Size, a.Count, a.Window, a.OneAtATime, func(slot int) (Waiter, error) {
		at := uint64(slot * a.Size)
		return e.Submit(ctx, []engine.Op{{
			Kind: kind, Local: m.region, LocalOffset: at, Segment: segment, Address: a.Address + at, Length: uint64(a.Size),
		}}, engine.SubmitOptions{})
	})
}

func (m *shared) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plain != nil {
		m.plain.close()
	}
}
