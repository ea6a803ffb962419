package control

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/sdk"
)

func manyTransports(n int) []Transport {
	var ts []Transport
	for i := range n {
		ts = append(ts, Transport{Name: fmt.Sprintf("t%d", i), Instance: 1})
	}
	return ts
}

func manyAttributes(n, size int) sdk.Attributes {
	a := sdk.Attributes{}
	for i := range n {
		a[fmt.Sprintf("%04d", i)] = strings.Repeat("x", size-4)
	}
	return a
}

// Each field missing, at its limit, and over it.
func TestChecks(t *testing.T) {
	helloWith := func(f func(*HelloRequest)) error { q := someHello(); f(&q); return q.check() }
	bootstrapWith := func(f func(*BootstrapRequest)) error { q := someBootstrap(); f(&q); return q.check() }
	transport := func(f func(*Transport)) error {
		return helloWith(func(q *HelloRequest) { f(&q.Transports[0]) })
	}
	lowHalf := sdk.Incarnation{1}
	for _, tt := range []struct {
		err  error
		code sdk.Code // 0: no error
		say  string
	}{
		{HelloRequest{}.check(), sdk.InvalidArgument, "from.name is missing"},
		{BootstrapRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{ProbeRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{ChangeRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{GoodbyeRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{HelloReply{}.checkFor(HelloRequest{}), sdk.InvalidArgument, "node.name is missing"},
		{ProbeReply{}.checkFor(ProbeRequest{}), sdk.InvalidArgument, "node.name is missing"},
		{BootstrapReply{}.checkFor(BootstrapRequest{}), 0, ""},
		{helloWith(func(q *HelloRequest) {}), 0, ""},
		{helloWith(func(q *HelloRequest) { q.From.Name = strings.Repeat("n", maxName) }), 0, ""},
		{helloWith(func(q *HelloRequest) { q.From.Name += strings.Repeat("n", maxName) }), sdk.TooLarge, "from.name has 257 bytes, the limit is 256"},
		{helloWith(func(q *HelloRequest) { q.From.Name = "\xff" }), sdk.InvalidArgument, "from.name is not valid UTF-8"},
		{helloWith(func(q *HelloRequest) { q.From.Address = "" }), sdk.InvalidArgument, "from.address is missing"},
		{helloWith(func(q *HelloRequest) { q.From.Started = time.Time{} }), sdk.InvalidArgument, "from.started is missing"},
		{helloWith(func(q *HelloRequest) { q.From.Started = time.Unix(1<<40, 0) }), sdk.InvalidArgument, "from.started is in the year"},
		{helloWith(func(q *HelloRequest) { q.From.Incarnation = lowHalf }), sdk.InvalidArgument, "from.incarnation has a zero low half"},
		{helloWith(func(q *HelloRequest) { q.Session = 0 }), sdk.InvalidArgument, "session is missing"},
		{helloWith(func(q *HelloRequest) { q.Replaces = 0; q.Version = 0; q.Proto = 0; q.Transports = nil }), 0, ""},
		{helloWith(func(q *HelloRequest) { q.Proto = -1 }), sdk.InvalidArgument, "proto is -1"},
		{helloWith(func(q *HelloRequest) { q.Proto = maxProto }), 0, ""},
		{helloWith(func(q *HelloRequest) { q.Proto = maxProto + 1 }), sdk.InvalidArgument, "proto is 65536"},
		{helloWith(func(q *HelloRequest) { q.Transports = manyTransports(32) }), 0, ""},
		{helloWith(func(q *HelloRequest) { q.Transports = manyTransports(33) }), sdk.TooLarge, "transports has 33 entries, the limit is 32"},
		{transport(func(t *Transport) { t.Name = "" }), sdk.InvalidArgument, "transports[0].name is missing"},
		{transport(func(t *Transport) { t.Name = strings.Repeat("a", 33) }), sdk.TooLarge, "transports[0].name has 33 bytes"},
		{transport(func(t *Transport) { t.Name = "a_b" }), sdk.InvalidArgument, "transports[0].name \"a_b\" has a byte outside"},
		{transport(func(t *Transport) { t.Instance = 0 }), sdk.InvalidArgument, "transports[0].instance is missing"},
		{transport(func(t *Transport) { t.Name, t.Instance = "mnnvl", 4 }), sdk.InvalidArgument, "transports[1] repeats mnnvl instance 4"},
		{transport(func(t *Transport) { t.Name = "mnnvl" }), 0, ""},
		{transport(func(t *Transport) { t.MaxFrame = -1 }), sdk.InvalidArgument, "transports[0].max_frame is -1"},
		{transport(func(t *Transport) { t.Down = slices.Repeat([]string{"p"}, maxDown) }), 0, ""},
		{transport(func(t *Transport) { t.Down = slices.Repeat([]string{"p"}, maxDown+1) }), sdk.TooLarge, "transports[0].down has 65 entries, the limit is 64"},
		{transport(func(t *Transport) { t.Down = []string{strings.Repeat("p", maxPath+1)} }), sdk.TooLarge, "transports[0].down has 1025 bytes"},
		{transport(func(t *Transport) { t.Lost = slices.Repeat([]Lost{{"p", 1}}, maxDown) }), 0, ""},
		{transport(func(t *Transport) { t.Lost = slices.Repeat([]Lost{{"p", 1}}, maxDown+1) }), sdk.TooLarge, "transports[0].lost has 65 entries, the limit is 64"},
		{transport(func(t *Transport) { t.Lost = []Lost{{"", 1}} }), sdk.InvalidArgument, "transports[0].lost.path is missing"},
		{transport(func(t *Transport) { t.Lost = []Lost{{"p", 0}} }), sdk.InvalidArgument, "transports[0].lost.generation is missing"},
		{transport(func(t *Transport) { t.Attributes = manyAttributes(64, 256) }), 0, ""},
		{transport(func(t *Transport) { t.Attributes = manyAttributes(65, 4) }), sdk.TooLarge, "transports[0].attributes has 65 entries, the limit is 64"},
		{transport(func(t *Transport) { t.Attributes = manyAttributes(64, 257) }), sdk.TooLarge, "has 16448 bytes, the limit is 16384"},
		{bootstrapWith(func(q *BootstrapRequest) { q.Offer = make([]byte, maxOffer) }), 0, ""},
		{bootstrapWith(func(q *BootstrapRequest) { q.Offer = make([]byte, maxOffer+1) }), sdk.TooLarge, "offer has 65537 bytes, the limit is 65536"},
		{bootstrapWith(func(q *BootstrapRequest) { q.Offer = nil }), 0, ""},
		{bootstrapWith(func(q *BootstrapRequest) { q.Path = strings.Repeat("p", maxPath) }), 0, ""},
		{bootstrapWith(func(q *BootstrapRequest) { q.Path = strings.Repeat("p", maxPath+1) }), sdk.TooLarge, "path has 1025 bytes"},
		{bootstrapWith(func(q *BootstrapRequest) { q.Path = "" }), sdk.InvalidArgument, "path is missing"},
		{bootstrapWith(func(q *BootstrapRequest) { q.To = sdk.Incarnation{} }), sdk.InvalidArgument, "to is missing"},
		{bootstrapWith(func(q *BootstrapRequest) { q.FromInstance = 0 }), sdk.InvalidArgument, "from_instance is missing"},
		{bootstrapWith(func(q *BootstrapRequest) { q.ToInstance = 0 }), sdk.InvalidArgument, "to_instance is missing"},
		{bootstrapWith(func(q *BootstrapRequest) { q.Generation = 0 }), sdk.InvalidArgument, "generation is missing"},
		{bootstrapWith(func(q *BootstrapRequest) { q.Generation = maxGeneration }), 0, ""},
		{bootstrapWith(func(q *BootstrapRequest) { q.Generation = maxGeneration + 1 }), sdk.InvalidArgument, "generation is 9223372036854775809, the limit is"},
		{bootstrapWith(func(q *BootstrapRequest) { q.Transport = "" }), sdk.InvalidArgument, "transport is missing"},
		{BootstrapReply{Newest: 4}.checkFor(someBootstrap()), sdk.InvalidArgument, "newest is 4, older than the offer's generation 5"},
		{BootstrapReply{Newest: 5}.checkFor(someBootstrap()), 0, ""},
		{BootstrapReply{Newest: math.MaxUint64}.checkFor(someBootstrap()), sdk.InvalidArgument, "newest is 18446744073709551615, the limit is"},
		{BootstrapReply{Answer: make([]byte, maxOffer+1)}.checkFor(BootstrapRequest{}), sdk.TooLarge, "answer has 65537 bytes"},
		{ChangeRequest{From: incarnation(1), Transports: manyTransports(33)}.check(), sdk.TooLarge, "transports has 33 entries"},
	} {
		if tt.code == 0 && tt.err == nil {
			continue
		}
		if sdk.CodeOf(tt.err) != tt.code || !strings.Contains(fmt.Sprint(tt.err), tt.say) {
			t.Errorf("got %v (%v), want %s (%v)", tt.err, sdk.CodeOf(tt.err), tt.say, tt.code)
		}
	}
}

func TestBounded(t *testing.T) {
	for _, s := range []string{"", "a\nb\x00", strings.Repeat("é", 100), strings.Repeat("\xff", 1000), strings.Repeat("界", 7)} {
		for _, limit := range []int{10, 11, 12, 20} {
			got := bounded(s, limit)
			if len(got) > limit || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\x00") {
				t.Errorf("%.20q at %d: %q", s, limit, got)
			}
		}
	}
	if got := bounded("fits", 10); got != "fits" {
		t.Errorf("got %q", got)
	}
}

func TestPredicates(t *testing.T) {
	for _, err := range []error{nil, errors.New("x"), sdk.Unavailable, sdk.Errorf(sdk.Refused, "x")} {
		if Answered(err) || Silent(err) || Gone(err) {
			t.Errorf("%v: nothing is known of a peer", err)
		}
	}
	gone := fmt.Errorf("wrapped: %w", peerGone("probe", "a", nil))
	if !Gone(gone) || Answered(gone) || Silent(gone) || !errors.Is(gone, sdk.Unavailable) {
		t.Errorf("got %v", gone)
	}
}
