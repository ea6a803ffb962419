package control

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
)

// wire takes a message to the wire and back.
func wire[M proto.Message](t *testing.T, m M) M {
	t.Helper()
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := m.ProtoReflect().New().Interface().(M)
	if err := proto.Unmarshal(raw, out); err != nil {
		t.Fatal(err)
	}
	return out
}

func roundTrip[G any, M proto.Message](t *testing.T, g G, to func(G) M, from func(M) (G, error)) {
	t.Helper()
	got, err := from(wire(t, to(g)))
	if err != nil {
		t.Fatal(err)
	}
	equal(t, got, g)
}

func TestConversionsRoundTrip(t *testing.T) {
	roundTrip(t, someHello(), helloRequestTo, helloRequestFrom)
	roundTrip(t, someHelloReply(), helloReplyTo, helloReplyFrom)
	roundTrip(t, someBootstrap(), bootstrapRequestTo, bootstrapRequestFrom)
	roundTrip(t, BootstrapReply{Answer: []byte("a")}, bootstrapReplyTo, bootstrapReplyFrom)
	roundTrip(t, BootstrapReply{Newest: 1 << 63}, bootstrapReplyTo, bootstrapReplyFrom)
	roundTrip(t, BootstrapReply{}, bootstrapReplyTo, bootstrapReplyFrom)
	roundTrip(t, ProbeRequest{From: incarnation(1)}, probeRequestTo, probeRequestFrom)
	roundTrip(t, ProbeReply{Node: node("b", 2)}, probeReplyTo, probeReplyFrom)
	roundTrip(t, ChangeRequest{From: incarnation(1), Transports: someTransports(), Version: 1 << 63}, changedRequestTo, changedRequestFrom)
	roundTrip(t, GoodbyeRequest{From: incarnation(1)}, goodbyeRequestTo, goodbyeRequestFrom)
	roundTrip(t, GoodbyeRequest{From: incarnation(1), Mapped: true}, goodbyeRequestTo, goodbyeRequestFrom)
	q := someHello()
	q.Session, q.Replaces, q.Version = 1<<64-1, 1<<63, 1<<64-1
	q.Transports = manyTransports(maxTransports)
	for i := range q.Transports {
		q.Transports[i].Attributes = manyAttributes(64, 256)
	}
	roundTrip(t, q, helloRequestTo, helloRequestFrom)
	if n := proto.Size(helloRequestTo(q)); n > maxMessageBytes {
		t.Errorf("the largest valid message has %d bytes, over the limit of %d", n, maxMessageBytes)
	}
}

// Nil and zero messages convert to zero values, which the checks refuse.
func TestConversionsOfNothing(t *testing.T) {
	nothing := func(err, check error) {
		t.Helper()
		if err != nil || check == nil {
			t.Errorf("conversion: %v, check: %v", err, check)
		}
	}
	for _, m := range []*pb.HelloRequest{nil, {}, {From: &pb.Node{}, Transports: []*pb.Transport{nil, {}}}} {
		q, err := helloRequestFrom(m)
		nothing(err, q.check())
	}
	for _, m := range []*pb.HelloReply{nil, {}} {
		r, err := helloReplyFrom(m)
		nothing(err, r.checkFor(someHello()))
	}
	for _, m := range []*pb.BootstrapRequest{nil, {}} {
		q, err := bootstrapRequestFrom(m)
		nothing(err, q.check())
	}
	for _, m := range []*pb.ProbeRequest{nil, {}} {
		q, err := probeRequestFrom(m)
		nothing(err, q.check())
	}
	for _, m := range []*pb.ProbeReply{nil, {}} {
		r, err := probeReplyFrom(m)
		nothing(err, r.checkFor(ProbeRequest{}))
	}
	for _, m := range []*pb.ChangedRequest{nil, {}} {
		q, err := changedRequestFrom(m)
		nothing(err, q.check())
	}
	for _, m := range []*pb.GoodbyeRequest{nil, {}} {
		q, err := goodbyeRequestFrom(m)
		nothing(err, q.check())
	}
	if r, err := bootstrapReplyFrom(nil); err != nil || r.Answer != nil {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestConversionsRefuse(t *testing.T) {
	attributes := func(n int, key string) []*pb.Attribute {
		var out []*pb.Attribute
		for range n {
			out = append(out, &pb.Attribute{Key: []byte(key)})
		}
		return out
	}
	for _, tt := range []struct {
		m    *pb.HelloRequest
		code sdk.Code
		say  string
	}{
		{&pb.HelloRequest{From: &pb.Node{Incarnation: make([]byte, 15)}}, sdk.InvalidArgument, "from.incarnation has 15 bytes, not 16"},
		{&pb.HelloRequest{From: &pb.Node{Incarnation: make([]byte, 1<<16)}}, sdk.InvalidArgument, "not 16"},
		{&pb.HelloRequest{Transports: make([]*pb.Transport, 33)}, sdk.TooLarge, "transports has 33 entries"},
		{&pb.HelloRequest{Transports: []*pb.Transport{{Attributes: attributes(65, "a")}}}, sdk.TooLarge, "attributes has 65 entries"},
		{&pb.HelloRequest{Transports: []*pb.Transport{{Attributes: attributes(2, "a")}}}, sdk.InvalidArgument, "repeats \"a\""},
	} {
		if _, err := helloRequestFrom(tt.m); !errors.Is(err, tt.code) || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("got %v, want %s", err, tt.say)
		}
	}
}

// Whatever bytes arrive: no panic, and what passes the checks survives the
// way back.
func FuzzHelloRequest(f *testing.F) {
	for _, q := range []HelloRequest{{}, someHello(), {From: node("a", 1), Session: 1}} {
		raw, err := proto.Marshal(helloRequestTo(q))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m pb.HelloRequest
		if proto.Unmarshal(raw, &m) != nil {
			return
		}
		q, err := helloRequestFrom(&m)
		if err != nil || q.check() != nil {
			return
		}
		roundTrip(t, q, helloRequestTo, helloRequestFrom)
	})
}

// Scenario 3: a later version's fields are ignored, and a protocol that is not
// named is 0.
func TestUnknownAndAbsentFields(t *testing.T) {
	q := someHello()
	q.Proto = 0
	raw, err := proto.Marshal(helloRequestTo(q))
	if err != nil {
		t.Fatal(err)
	}
	raw = append(raw, 0xFA, 0x3E, 0x03, 'n', 'e', 'w') // field 1007, three bytes
	m := &pb.HelloRequest{}
	if err := proto.Unmarshal(raw, m); err != nil {
		t.Fatal(err)
	}
	got, err := helloRequestFrom(m)
	if err != nil || got.check() != nil {
		t.Fatalf("%v, %v", err, got.check())
	}
	equal(t, got, q)
}
