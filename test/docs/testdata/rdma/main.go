// Command docbytes is a peer of the rdma transport, on simulated devices, that
// knows only what docs/protocol.md says. It prints what the transport publishes
// and offers, and its control words, and lets it write to and read its memory.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"regexp"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
	"github.com/hawser-transport/hawser/plugins/rdma/rdmatransport"
	"github.com/hawser-transport/hawser/sdk"
)

const patience = 10 * time.Second

func main() {
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "doc")
	if err == nil {
		err = errors.Join(run(dir), os.RemoveAll(dir))
	}
	if err != nil {
		log.Fatal(err)
	}
}

func host(dir, name, gid string) (*simverbs.Provider, error) {
	return simverbs.New(simverbs.Options{Dir: dir, Host: name, Devices: []simverbs.Device{{
		Name: "mlx5_0", Ports: []simverbs.Port{{GIDs: []verbs.GID{{Addr: netip.MustParseAddr(gid), Type: verbs.GIDRoCEv2}}}},
	}}})
}

// taken is a handler that tells of frames.
type taken chan string

func (t taken) Completed([]sdk.Completion) {}
func (t taken) Received(frames [][]byte)   { t <- string(frames[0]) }
func (t taken) Ended(error)                { close(t) }

// offer is what the peer has to know of an offer.
type offer struct {
	QP  uint32     `json:"notify_qp_num"`
	GID netip.Addr `json:"local_gid"`
	MTU verbs.MTU  `json:"mtu"`
	PSN uint32     `json:"psn"`
}

func run(dir string) error {
	here, err := host(dir, "here", "::ffff:10.77.0.1")
	if err != nil {
		return err
	}
	defer here.Close()
	there, err := host(dir, "there", "::ffff:10.77.0.2")
	if err != nil {
		return err
	}
	defer there.Close()
	end := verbstest.Local(there, verbstest.Config{Device: "mlx5_0", Port: 1})
	if err := end.Start(verbstest.Setup{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	local, remote := sdk.Incarnation{15: 1}, sdk.Incarnation{15: 2}
	t := rdmatransport.New(here)
	setup, err := t.Configure(ctx, sdk.Config{Instance: 2, Incarnation: local, Settings: []byte("{}")})
	if err != nil {
		return err
	}
	fmt.Printf("rdma-ports %s\n", setup.Attributes["ports"])

	target := sdk.Target{Local: local, Peer: remote, PeerName: "there:7000", Generation: 7, Remote: sdk.Attributes{
		"ports":       `[{"nic": "mlx5_0", "port": 1, "gid": "::ffff:10.77.0.2", "gid_type": "roce-v2", "link": "ethernet"}]`,
		"incarnation": remote.String(), "instance": "3",
	}, Path: "10.77.0.1-10.77.0.2"}
	var at verbstest.Address
	exchange := func(_ context.Context, raw []byte) ([]byte, error) {
		fmt.Printf("rdma-offer %s\n", raw)
		var o offer
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, err
		}
		if at, err = end.NewQP(16); err != nil {
			return nil, err
		}
		if _, err := end.PostRecv(0, 1, 2, 3); err != nil {
			return nil, err
		}
		peer := verbstest.Address{QP: o.QP, GID: o.GID.As16(), MTU: o.MTU}
		if err := end.Connect(at.QP, peer, verbstest.Attr{PeerPSN: o.PSN}, verbs.RTS); err != nil {
			return nil, err
		}
		return json.Marshal(map[string]any{
			"notify_qp_num": at.QP, "local_gid": "::ffff:10.77.0.2", "mtu": o.MTU, "send_limit": 4,
			"from": remote.String(), "to": local.String(), "generation": 7, "instance": 3,
		})
	}
	frames := make(taken, 1)
	e, err := t.Connect(ctx, target, exchange, frames)
	if err != nil {
		return err
	}
	if err := control(end, "ready"); err != nil {
		return err
	}
	if err := end.Fill(8, []byte("abc")); err != nil {
		return err
	}
	if _, err := end.PostSend(at.QP, verbstest.WR{Slot: 8, Length: 3, Op: verbs.Send}); err != nil {
		return err
	}
	if f := <-frames; f != "abc" {
		return fmt.Errorf("the transport received %q", f)
	}
	if err := control(end, "grant"); err != nil {
		return err
	}
	e.Close()
	if err := control(end, "bye"); err != nil {
		return err
	}
	for range frames { // until it has ended
	}
	if err := move(ctx, t, end, target); err != nil {
		return err
	}
	return errors.Join(t.Close(ctx), end.Stop())
}

// outcomes is a handler that tells of ops.
type outcomes chan sdk.Completion

func (o outcomes) Completed(cs []sdk.Completion) {
	for _, c := range cs {
		o <- c
	}
}
func (o outcomes) Received([][]byte) {}
func (o outcomes) Ended(error)       { close(o) }

// random is the number of an offer's first packet.
var random = regexp.MustCompile(`"psn":[0-9]+`)

// move has the transport write to the peer's memory and read it again.
func move(ctx context.Context, t *rdmatransport.Transport, end verbstest.End, target sdk.Target) error {
	target.Use, target.Generation = sdk.UseMemory, 8
	exchange := func(_ context.Context, raw []byte) ([]byte, error) {
		fmt.Printf("rdma-memory-offer %s\n", random.ReplaceAll(raw, []byte(`"psn":11259375`)))
		var o struct {
			offer
			Data  []uint32 `json:"qp_num"`
			Reads int      `json:"read_limit"`
		}
		if err := json.Unmarshal(raw, &o); err != nil {
			return nil, err
		}
		at, err := end.NewQP(16)
		if err != nil {
			return nil, err
		}
		if _, err := end.PostRecv(4, 5); err != nil {
			return nil, err
		}
		peer := verbstest.Address{QP: o.Data[0], GID: o.GID.As16(), MTU: o.MTU}
		if err := end.Connect(at.QP, peer, verbstest.Attr{PeerPSN: o.PSN, Reads: o.Reads, Answers: 4}, verbs.RTS); err != nil {
			return nil, err
		}
		return json.Marshal(map[string]any{
			"qp_num": []uint32{at.QP}, "local_gid": "::ffff:10.77.0.2", "mtu": o.MTU, "read_limit": 4,
			"from": target.Peer.String(), "to": target.Local.String(), "generation": 8, "instance": 3,
		})
	}
	h := make(outcomes, 8)
	e, err := t.Connect(ctx, target, exchange, h)
	if err != nil {
		return err
	}
	if err := word(end, 1); err != nil { // ready
		return err
	}
	there, err := end.Share(verbs.LocalWrite | verbs.RemoteRead | verbs.RemoteWrite)
	if err != nil {
		return err
	}
	region := sdk.Capability{1}
	err = t.Announce(ctx, sdk.RemoteRegion{
		Provider: target.Peer, Instance: 3, Capability: region, Kind: sdk.HostMemory, Length: verbstest.SlotSize, Writable: true,
		Attributes: sdk.Attributes{"address": fmt.Sprintf("%x", there.At), "keys": fmt.Sprintf("mlx5_0=%x mlx5_1=1", there.RKey)},
	})
	if err != nil {
		return err
	}
	mine, err := local(ctx, t, []byte("abcdef"))
	if err != nil {
		return err
	}
	defer mine.Close()
	for i, op := range []sdk.Op{
		{Kind: sdk.Write, Local: here, LocalOffset: 1, Remote: region, RemoteOffset: 2, Length: 3}, // bcd
		{Kind: sdk.Flush, Remote: region, RemoteOffset: 2, Length: 3},
		{Kind: sdk.Read, Local: here, LocalOffset: 3, Remote: region, RemoteOffset: 2, Length: 3},
	} {
		if _, err := e.Send([]sdk.Frame{{ID: uint64(i + 1), Data: op.Append(nil)}}, false); err != nil {
			return err
		}
		if c := <-h; c.Outcome != sdk.Done {
			return fmt.Errorf("op %d is %v (%v)", i, c.Outcome, c.Code)
		}
	}
	got := make([]byte, 6)
	if _, err := mine.ReadAt(got, 0); err != nil || string(got) != "abcbcd" {
		return fmt.Errorf("read %q: %w", got, err)
	}
	if b, err := end.Shared(5); err != nil || string(b[2:]) != "bcd" {
		return fmt.Errorf("wrote %q: %w", b, err)
	}
	e.Close()
	if err := word(end, 3); err != nil { // bye
		return err
	}
	for range h { // until it has ended
	}
	return nil
}

// here is a region of the transport's application.
var here = sdk.Capability{2}

func local(ctx context.Context, t *rdmatransport.Transport, bytes []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("docbytes", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "docbytes")
	if _, err := file.Write(bytes); err != nil {
		return nil, err
	}
	if _, err := unix.FcntlInt(file.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		return nil, err
	}
	second, err := unix.Dup(fd)
	if err != nil {
		return nil, err
	}
	_, err = t.Register(ctx, sdk.Region{
		Capability: here, Kind: sdk.HostMemory, Base: 1 << 20, Length: uint64(len(bytes)), Writable: true,
		File: os.NewFile(uintptr(second), "region"),
	})
	return file, err
}

// word wants a control word of that kind, beside completions of the peer's own.
func word(end verbstest.End, kind uint32) error {
	wcs, err := end.Poll(1, patience)
	if err != nil || len(wcs) != 1 || !wcs[0].HasImm || wcs[0].Imm>>28 != kind {
		return fmt.Errorf("control word %d: %+v: %w", kind, wcs, err)
	}
	return nil
}

// control prints the next control word that comes.
func control(end verbstest.End, name string) error {
	wcs, err := end.Poll(1, patience)
	if err != nil || len(wcs) != 1 || !wcs[0].HasImm || wcs[0].Length != 0 {
		return fmt.Errorf("%s: %+v: %w", name, wcs, err)
	}
	fmt.Printf("rdma-%s %08x\n", name, wcs[0].Imm)
	return nil
}
