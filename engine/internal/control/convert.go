package control

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
)

// Conversions between messages and their wire form. Those from the wire take
// anything a peer may send, nil included, and leave to the checks what a
// missing value means; they fail only for what has no Go form.

func incarnationFrom(field string, b []byte) (sdk.Incarnation, error) {
	var i sdk.Incarnation
	if len(b) != 0 && len(b) != len(i) {
		return i, sdk.Errorf(sdk.InvalidArgument, "%s has %d bytes, not %d", field, len(b), len(i))
	}
	copy(i[:], b)
	return i, nil
}

func nodeTo(n Node) *pb.Node {
	return &pb.Node{Name: n.Name, Address: n.Address, Incarnation: n.Incarnation[:], StartedUnixNanos: n.Started.UnixNano()}
}

func nodeFrom(field string, m *pb.Node) (Node, error) {
	i, err := incarnationFrom(field+".incarnation", m.GetIncarnation())
	n := Node{Name: m.GetName(), Address: m.GetAddress(), Incarnation: i}
	if at := m.GetStartedUnixNanos(); at != 0 {
		n.Started = time.Unix(0, at)
	}
	return n, err
}

func transportsTo(ts []Transport) []*pb.Transport {
	var out []*pb.Transport
	for _, t := range ts {
		m := &pb.Transport{Name: t.Name, Instance: t.Instance, MaxFrame: uint32(t.MaxFrame), Down: t.Down}
		for _, k := range slices.Sorted(maps.Keys(t.Attributes)) {
			m.Attributes = append(m.Attributes, &pb.Attribute{Key: []byte(k), Value: []byte(t.Attributes[k])})
		}
		for _, l := range t.Lost {
			m.Lost = append(m.Lost, &pb.Lost{Path: l.Path, Generation: l.Generation})
		}
		out = append(out, m)
	}
	return out
}

// transportsFrom bounds what it allocates; the checks bound what is inside.
func transportsFrom(ms []*pb.Transport) ([]Transport, error) {
	if len(ms) > maxTransports {
		return nil, sdk.Errorf(sdk.TooLarge, "transports has %d entries, the limit is %d", len(ms), maxTransports)
	}
	var out []Transport
	for i, m := range ms {
		t := Transport{Name: m.GetName(), Instance: m.GetInstance(), MaxFrame: int(m.GetMaxFrame()), Down: m.GetDown()}
		if n := len(m.GetAttributes()); n > maxAttributes {
			return nil, sdk.Errorf(sdk.TooLarge, "transports[%d].attributes has %d entries, the limit is %d", i, n, maxAttributes)
		} else if n > 0 {
			t.Attributes = make(sdk.Attributes, n)
		}
		for _, a := range m.GetAttributes() {
			k := string(a.GetKey())
			if _, ok := t.Attributes[k]; ok {
				return nil, sdk.Errorf(sdk.InvalidArgument, "transports[%d].attributes repeats %.64q", i, k)
			}
			t.Attributes[k] = string(a.GetValue())
		}
		if n := len(m.GetLost()); n > maxDown {
			return nil, sdk.Errorf(sdk.TooLarge, "transports[%d].lost has %d entries, the limit is %d", i, n, maxDown)
		}
		for _, l := range m.GetLost() {
			t.Lost = append(t.Lost, Lost{l.GetPath(), l.GetGeneration()})
		}
		out = append(out, t)
	}
	return out, nil
}

func helloRequestTo(q HelloRequest) *pb.HelloRequest {
	return &pb.HelloRequest{From: nodeTo(q.From), Proto: uint32(q.Proto), Session: q.Session, Replaces: q.Replaces,
		Transports: transportsTo(q.Transports), Version: q.Version}
}

func helloRequestFrom(m *pb.HelloRequest) (HelloRequest, error) {
	from, err := nodeFrom("from", m.GetFrom())
	ts, err2 := transportsFrom(m.GetTransports())
	return HelloRequest{From: from, Proto: int(m.GetProto()), Session: m.GetSession(), Replaces: m.GetReplaces(),
		Transports: ts, Version: m.GetVersion()}, first(err, err2)
}

func helloReplyTo(r HelloReply) *pb.HelloReply {
	return &pb.HelloReply{Node: nodeTo(r.Node), Proto: uint32(r.Proto), Session: r.Session,
		RoomSeq: r.Room.Seq, RoomBytes: r.Room.Bytes, Transports: transportsTo(r.Transports), Version: r.Version}
}

func helloReplyFrom(m *pb.HelloReply) (HelloReply, error) {
	n, err := nodeFrom("node", m.GetNode())
	ts, err2 := transportsFrom(m.GetTransports())
	return HelloReply{Node: n, Proto: int(m.GetProto()), Session: m.GetSession(),
		Room: Room{Seq: m.GetRoomSeq(), Bytes: m.GetRoomBytes()}, Transports: ts, Version: m.GetVersion()}, first(err, err2)
}

func bootstrapRequestTo(q BootstrapRequest) *pb.BootstrapRequest {
	return &pb.BootstrapRequest{From: q.From[:], To: q.To[:], Transport: q.Transport, FromInstance: q.FromInstance,
		ToInstance: q.ToInstance, Path: q.Path, Generation: q.Generation, Offer: q.Offer, Use: uint32(q.Use), Lane: uint32(q.Lane)}
}

func bootstrapRequestFrom(m *pb.BootstrapRequest) (BootstrapRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	to, err2 := incarnationFrom("to", m.GetTo())
	return BootstrapRequest{From: from, To: to, Transport: m.GetTransport(), FromInstance: m.GetFromInstance(),
		ToInstance: m.GetToInstance(), Path: m.GetPath(), Generation: m.GetGeneration(), Offer: m.GetOffer(),
		Use: sdk.Use(min(m.GetUse(), math.MaxUint8)), Lane: int(m.GetLane())}, first(err, err2)
}

func bootstrapReplyTo(r BootstrapReply) *pb.BootstrapReply {
	return &pb.BootstrapReply{Answer: r.Answer, Newest: r.Newest}
}

func bootstrapReplyFrom(m *pb.BootstrapReply) (BootstrapReply, error) {
	return BootstrapReply{Answer: m.GetAnswer(), Newest: m.GetNewest()}, nil
}

func probeRequestTo(q ProbeRequest) *pb.ProbeRequest { return &pb.ProbeRequest{From: q.From[:]} }

func probeRequestFrom(m *pb.ProbeRequest) (ProbeRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	return ProbeRequest{From: from}, err
}

func probeReplyTo(r ProbeReply) *pb.ProbeReply { return &pb.ProbeReply{Node: nodeTo(r.Node)} }

func probeReplyFrom(m *pb.ProbeReply) (ProbeReply, error) {
	n, err := nodeFrom("node", m.GetNode())
	return ProbeReply{Node: n}, err
}

func changedRequestTo(q ChangeRequest) *pb.ChangedRequest {
	return &pb.ChangedRequest{From: q.From[:], Transports: transportsTo(q.Transports), Version: q.Version}
}

func changedRequestFrom(m *pb.ChangedRequest) (ChangeRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	ts, err2 := transportsFrom(m.GetTransports())
	return ChangeRequest{From: from, Transports: ts, Version: m.GetVersion()}, first(err, err2)
}

func changedReplyTo(none) *pb.ChangedReply            { return &pb.ChangedReply{} }
func changedReplyFrom(*pb.ChangedReply) (none, error) { return none{}, nil }

func goodbyeRequestTo(q GoodbyeRequest) *pb.GoodbyeRequest {
	return &pb.GoodbyeRequest{From: q.From[:], LastAck: q.LastAck, Mapped: q.Mapped}
}

func goodbyeRequestFrom(m *pb.GoodbyeRequest) (GoodbyeRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	return GoodbyeRequest{From: from, LastAck: m.GetLastAck(), Mapped: m.GetMapped()}, err
}

func goodbyeReplyTo(goodbyeReply) *pb.GoodbyeReply            { return &pb.GoodbyeReply{} }
func goodbyeReplyFrom(*pb.GoodbyeReply) (goodbyeReply, error) { return goodbyeReply{}, nil }

func fenceRequestTo(q FenceRequest) *pb.FenceRequest {
	return &pb.FenceRequest{From: q.From[:], To: q.To[:], Transport: q.Transport, Path: q.Path,
		Lane: uint32(q.Lane), Generation: q.Generation}
}

func fenceRequestFrom(m *pb.FenceRequest) (FenceRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	to, err2 := incarnationFrom("to", m.GetTo())
	return FenceRequest{From: from, To: to, Transport: m.GetTransport(), Path: m.GetPath(),
		Lane: int(m.GetLane()), Generation: m.GetGeneration()}, first(err, err2)
}

func fenceReplyTo(fenceReply) *pb.FenceReply            { return &pb.FenceReply{} }
func fenceReplyFrom(*pb.FenceReply) (fenceReply, error) { return fenceReply{}, nil }

func describeRequestTo(q DescribeRequest) *pb.DescribeRequest {
	return &pb.DescribeRequest{From: q.From[:], To: q.To[:], Known: q.Known}
}

func describeRequestFrom(m *pb.DescribeRequest) (DescribeRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	to, err2 := incarnationFrom("to", m.GetTo())
	return DescribeRequest{From: from, To: to, Known: m.GetKnown()}, first(err, err2)
}

func describeReplyTo(r DescribeReply) *pb.DescribeReply {
	return &pb.DescribeReply{Version: r.Version, Body: r.Descriptor}
}

func describeReplyFrom(m *pb.DescribeReply) (DescribeReply, error) {
	return DescribeReply{Version: m.GetVersion(), Descriptor: m.GetBody()}, nil
}

func capabilitiesTo(cs []sdk.Capability) [][]byte {
	var out [][]byte
	for _, c := range cs {
		out = append(out, c[:])
	}
	return out
}

func capabilitiesFrom(field string, bs [][]byte) ([]sdk.Capability, error) {
	if len(bs) > maxWithdrawn {
		return nil, sdk.Errorf(sdk.TooLarge, "%s has %d entries, the limit is %d", field, len(bs), maxWithdrawn)
	}
	var out []sdk.Capability
	for _, b := range bs {
		var c sdk.Capability
		if len(b) != len(c) {
			return nil, sdk.Errorf(sdk.InvalidArgument, "%s has one of %d bytes, not %d", field, len(b), len(c))
		}
		out = append(out, sdk.Capability(b))
	}
	return out, nil
}

func invalidateRequestTo(q InvalidateRequest) *pb.InvalidateRequest {
	return &pb.InvalidateRequest{From: q.From[:], To: q.To[:], Version: q.Version, Withdrawn: capabilitiesTo(q.Withdrawn)}
}

func invalidateRequestFrom(m *pb.InvalidateRequest) (InvalidateRequest, error) {
	from, err := incarnationFrom("from", m.GetFrom())
	to, err2 := incarnationFrom("to", m.GetTo())
	withdrawn, err3 := capabilitiesFrom("withdrawn", m.GetWithdrawn())
	return InvalidateRequest{From: from, To: to, Version: m.GetVersion(), Withdrawn: withdrawn}, first(err, err2, err3)
}

func invalidateReplyTo(r InvalidateReply) *pb.InvalidateReply {
	return &pb.InvalidateReply{Leased: capabilitiesTo(r.Leased)}
}

func invalidateReplyFrom(m *pb.InvalidateReply) (InvalidateReply, error) {
	leased, err := capabilitiesFrom("leased", m.GetLeased())
	return InvalidateReply{Leased: leased}, err
}
