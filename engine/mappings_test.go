//go:build linux

package engine

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine/admin"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

func TestAdminSocketTellsOfMappings(t *testing.T) {
	r := newReal(t)
	r.fabric = sdktest.NewFabric(sdktest.FabricOptions{Name: rpcFallbackName, Moves: true})
	socket := filepath.Join(shortDir(t), "s")
	a, b := r.open("a:1", AdminConfig{Socket: socket}), r.open("b:1", AdminConfig{})
	mine, err := a.AllocateHost(100, RegionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := b.AllocateHost(100, RegionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := a.OpenSegment(ctx, "b:1")
	if err != nil {
		t.Fatal(err)
	}
	x, err := a.Submit(ctx, []Op{{Kind: Write, Local: mine, Segment: g, Address: theirs.Address(), Length: 100}}, SubmitOptions{})
	if err == nil {
		err = x.Wait(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	client := admin.Dial(socket)
	list, err := client.Mappings(ctx)
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	want := admin.Mapping{
		Side: "consumer", Peer: "b:1", Incarnation: b.incarnation.String(), Capability: theirs.Capability().Short(),
		Address: theirs.Address(), Length: 100, State: MappingIdle, Transports: []string{rpcFallbackName},
	}
	if m := list[0]; m.Side != want.Side || m.Peer != want.Peer || m.Incarnation != want.Incarnation || m.Capability != want.Capability ||
		m.Address != want.Address || m.Length != want.Length || m.State != want.State || !slices.Equal(m.Transports, want.Transports) {
		t.Errorf("%+v, want %+v", m, want)
	}
	peers, err := client.Peers(ctx, 0)
	if err != nil || len(peers.Peers) != 1 || peers.Peers[0].Segment == nil {
		t.Fatalf("%+v, %v", peers, err)
	}
	if s := peers.Peers[0].Segment; s.Buffers != 1 || s.Opens != 1 || s.Version == 0 || s.Latest != s.Version || len(s.Endpoints) != 1 || s.Ops != 0 {
		t.Errorf("%+v", s)
	}
	if got, err := client.RetireMappings(ctx, "b:1"); err != nil || got.Mappings != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := client.RetireMappings(ctx, "nobody:1"); err == nil {
		t.Error("retired what is not there")
	}
	_ = g.Close()
	for _, c := range []*Region{mine, theirs} {
		if err := c.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}
