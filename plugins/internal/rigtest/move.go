package rigtest

import (
	"crypto/rand"
	"encoding/binary"
	"io"
	"sync"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Memory is host memory that is registered with a node.
type Memory struct {
	sdktest.Memory
	Node   *Node
	Region sdk.Region // without its file
	Attrs  sdk.Attributes
}

// Mover is the node's transport.
func (n *Node) Mover() sdk.Mover { return n.Transport.(sdk.Mover) }

// Register makes memory and registers it with a node.
func Register(t testing.TB, n *Node, size int, writable bool) *Memory {
	t.Helper()
	m := &Memory{Memory: sdktest.HostMemory(t, size), Node: n}
	r, err := m.Export(writable)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = rand.Read(r.Capability[:])
	r.Base = 1<<40 + uint64(binary.LittleEndian.Uint32(r.Capability[:]))<<28 // nobody else's
	if m.Attrs, err = n.Mover().Register(Context(t), r); err != nil {
		t.Fatalf("Register: %v", err)
	}
	m.Region, m.Region.File = r, nil
	return m
}

// Announce says what the memory is to another node.
func (m *Memory) Announce(t testing.TB, at *Node) {
	t.Helper()
	r := m.Region
	if err := at.Mover().Announce(Context(t), sdk.RemoteRegion{
		Provider: m.Node.Inc, Instance: m.Node.Instance, Capability: r.Capability, Kind: r.Kind, Base: r.Base,
		Length: r.Length, Writable: r.Writable, Attributes: m.Attrs, Version: 1,
	}); err != nil {
		t.Fatalf("Announce: %v", err)
	}
}

// ConnectMemory makes an endpoint for memory.
func ConnectMemory(t testing.TB, a, b *Node, lane int, generation uint64, ha, hb sdk.Handler) (active, passive sdk.Endpoint) {
	t.Helper()
	target := Target(a, b, generation)
	target.Use, target.Lane = sdk.UseMemory, lane
	return ConnectOver(t, a, b, target, ha, hb)
}

// Op is one between two memories.
func Op(kind sdk.OpKind, here *Memory, hereOffset int, there *Memory, thereOffset, length int) []byte {
	o := sdk.Op{
		Kind: kind, Local: here.Region.Capability, LocalOffset: uint64(hereOffset),
		Remote: there.Region.Capability, RemoteOffset: uint64(thereOffset), Length: uint64(length),
	}
	return o.Append(nil)
}

// movedBytes is what a round of BenchMove moves.
const movedBytes = 16 << 20

// BenchMove compares transfers of 16 MiB from one memory to another, within
// one process, with plain TCP between two buffers: one connection, and one
// reply for all of it. The transport has as many lanes as it asks for.
func BenchMove(b *testing.B, name string, fresh func() sdk.Transport) {
	b.Run("plain", func(b *testing.B) {
		x, y := plainPair(b)
		from, to := make([]byte, movedBytes), make([]byte, movedBytes)
		go func() {
			for {
				if _, err := io.ReadFull(y, to); err != nil {
					return
				}
				if _, err := y.Write(to[:1]); err != nil {
					return
				}
			}
		}()
		b.SetBytes(movedBytes)
		for b.Loop() {
			if _, err := x.Write(from); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(x, from[:1]); err != nil {
				b.Fatal(err)
			}
		}
	})
	limits := fresh().Describe().Move.WithDefaults()
	for _, kind := range []sdk.OpKind{sdk.Write, sdk.Read} {
		for lanes := 1; lanes <= limits.Parallel; lanes *= 2 {
			b.Run(name+"/"+kind.String()+"/lanes="+string(rune('0'+lanes)), func(b *testing.B) {
				benchMove(b, fresh, kind, lanes, limits)
			})
		}
	}
}

func benchMove(b *testing.B, fresh func() sdk.Transport, kind sdk.OpKind, lanes int, limits sdk.MoveLimits) {
	na, nb := Start(b, fresh(), sdk.Config{Instance: 1}), Start(b, fresh(), sdk.Config{Instance: 2})
	here, there := Register(b, na, movedBytes, true), Register(b, nb, movedBytes, true)
	there.Announce(b, na)
	var left sync.WaitGroup
	done := hook{completed: func(cs []sdk.Completion) {
		for _, c := range cs {
			if c.Outcome != sdk.Done {
				b.Errorf("op %d is %v (%v)", c.ID, c.Outcome, c.Code)
			}
			left.Done()
		}
	}}
	ends := make([]sdk.Endpoint, lanes)
	for i := range ends {
		ends[i], _ = ConnectMemory(b, na, nb, i, 1, &done, &hook{})
	}
	ids := make([]uint64, lanes)
	b.SetBytes(movedBytes)
	for b.Loop() {
		for i, at := 0, 0; at < movedBytes; i, at = i+1, at+limits.MaxOp {
			k := i % lanes
			ids[k]++
			left.Add(1)
			frame := sdk.Frame{ID: ids[k], Data: Op(kind, here, at, there, at, limits.MaxOp)}
			if _, err := ends[k].Send([]sdk.Frame{frame}, false); err != nil {
				b.Fatal(err)
			}
		}
		left.Wait()
	}
}
