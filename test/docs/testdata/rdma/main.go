// Command docbytes is a peer of the rdma transport, on simulated devices, that
// knows only what docs/protocol.md says. It prints what the transport publishes
// and offers, and its control words.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"time"

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
	return errors.Join(t.Close(ctx), end.Stop())
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
