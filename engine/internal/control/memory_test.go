package control

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/engine/internal/control/pb"
	"github.com/hawser-transport/hawser/sdk"
)

// The calls about memory.

func (s *stub) Fence(ctx context.Context, q FenceRequest) error {
	if s.fence == nil {
		return errors.New("no fence")
	}
	return s.fence(ctx, q)
}

func (s *stub) Describe(ctx context.Context, q DescribeRequest) (DescribeReply, error) {
	if s.describe == nil {
		return DescribeReply{}, errors.New("no describe")
	}
	return s.describe(ctx, q)
}

func (s *stub) Invalidate(ctx context.Context, q InvalidateRequest) (InvalidateReply, error) {
	if s.invalidate == nil {
		return InvalidateReply{}, errors.New("no invalidate")
	}
	return s.invalidate(ctx, q)
}

func someFence() FenceRequest {
	return FenceRequest{From: incarnation(1), To: incarnation(2), Transport: "tcp", Path: "main", Lane: 7, Generation: 9}
}

func someInvalidate() InvalidateRequest {
	return InvalidateRequest{From: incarnation(1), To: incarnation(2), Version: 3, Withdrawn: []sdk.Capability{{1}, {2}}}
}

func TestCallsAboutMemoryCarryEverything(t *testing.T) {
	eachCarrier(t, func(t *testing.T, w world) {
		bootstrap := someBootstrap()
		bootstrap.Use, bootstrap.Lane = sdk.UseMemory, 3
		describe := DescribeRequest{From: incarnation(1), To: incarnation(2), Known: 4}
		large := []byte(strings.Repeat("d", MaxDescriptor))
		c, _ := pair(t, w, &stub{
			bootstrap: func(_ context.Context, q BootstrapRequest) (BootstrapReply, error) {
				equal(t, q, bootstrap)
				return BootstrapReply{}, nil
			},
			fence: func(_ context.Context, q FenceRequest) error { equal(t, q, someFence()); return nil },
			describe: func(_ context.Context, q DescribeRequest) (DescribeReply, error) {
				if q.Known == 5 {
					return DescribeReply{Version: 5}, nil
				}
				equal(t, q, describe)
				return DescribeReply{Version: 5, Descriptor: large}, nil
			},
			invalidate: func(_ context.Context, q InvalidateRequest) (InvalidateReply, error) {
				equal(t, q, someInvalidate())
				return InvalidateReply{Leased: q.Withdrawn[1:]}, nil
			},
		})
		ctx := testContext(t)
		if _, err := c.Bootstrap(ctx, bootstrap); err != nil {
			t.Error(err)
		}
		if err := c.Fence(ctx, someFence()); err != nil {
			t.Error(err)
		}
		r, err := c.Describe(ctx, describe)
		if err != nil || r.Version != 5 || len(r.Descriptor) != MaxDescriptor {
			t.Errorf("version %d with %d bytes, %v", r.Version, len(r.Descriptor), err)
		}
		describe.Known = 5
		if r, err = c.Describe(ctx, describe); err != nil || r.Version != 5 || r.Descriptor != nil {
			t.Errorf("%+v, %v", r, err)
		}
		in, err := c.Invalidate(ctx, someInvalidate())
		if err != nil {
			t.Fatal(err)
		}
		equal(t, in, InvalidateReply{Leased: []sdk.Capability{{2}}})
	})
}

func TestChecksOfCallsAboutMemory(t *testing.T) {
	bootstrap := func(u sdk.Use, lane int) error {
		q := someBootstrap()
		q.Use, q.Lane = u, lane
		return q.check()
	}
	fence := func(f func(*FenceRequest)) error {
		q := someFence()
		f(&q)
		return q.check()
	}
	many := make([]sdk.Capability, maxWithdrawn+1)
	for _, tt := range []struct {
		err  error
		code sdk.Code // 0: no error
		say  string
	}{
		{bootstrap(sdk.UseMemory, maxLanes-1), 0, ""},
		{bootstrap(sdk.UseMemory, maxLanes), sdk.InvalidArgument, "lane is 8, allowed are 0 to 7"},
		{bootstrap(sdk.UseMemory, -1), sdk.InvalidArgument, "lane is -1"},
		{bootstrap(sdk.UseFrames, 1), sdk.InvalidArgument, "lane is 1, endpoints for frames have none"},
		{bootstrap(2, 0), sdk.InvalidArgument, "use is 2"},
		{FenceRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{fence(func(*FenceRequest) {}), 0, ""},
		{fence(func(q *FenceRequest) { q.Generation = 0 }), sdk.InvalidArgument, "generation is missing"},
		{fence(func(q *FenceRequest) { q.Lane = 8 }), sdk.InvalidArgument, "lane is 8"},
		{fence(func(q *FenceRequest) { q.Path = "" }), sdk.InvalidArgument, "path is missing"},
		{fence(func(q *FenceRequest) { q.Transport = "A" }), sdk.InvalidArgument, "transport"},
		{DescribeRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{DescribeRequest{From: incarnation(1)}.check(), sdk.InvalidArgument, "to is missing"},
		{DescribeReply{}.checkFor(DescribeRequest{}), sdk.InvalidArgument, "version is missing"},
		{DescribeReply{Version: 2}.checkFor(DescribeRequest{Known: 1}), sdk.InvalidArgument, "descriptor is missing"},
		{DescribeReply{Version: 1, Descriptor: make([]byte, MaxDescriptor+1)}.checkFor(DescribeRequest{}), sdk.TooLarge, "descriptor has"},
		{InvalidateRequest{}.check(), sdk.InvalidArgument, "from is missing"},
		{InvalidateRequest{From: incarnation(1), Version: 1}.check(), 0, ""},
		{InvalidateRequest{From: incarnation(1), Version: 1, Withdrawn: many}.check(), sdk.TooLarge, "withdrawn has 1025 entries"},
		{InvalidateRequest{From: incarnation(1), Version: 1, Withdrawn: many[:1]}.check(), sdk.InvalidArgument, "an empty capability"},
		{InvalidateReply{Leased: []sdk.Capability{{3}}}.checkFor(someInvalidate()), sdk.InvalidArgument, "was not withdrawn"},
	} {
		if tt.code == 0 {
			if tt.err != nil {
				t.Error(tt.err)
			}
		} else if !errors.Is(tt.err, tt.code) || !strings.Contains(tt.err.Error(), tt.say) {
			t.Errorf("%v, want %q", tt.err, tt.say)
		}
	}
}

// What a peer may send that has no Go form, and what it may leave out.
func TestConversionsOfCallsAboutMemory(t *testing.T) {
	for _, tt := range []struct {
		got  error
		want string
	}{
		{errOf(fenceRequestFrom(&pb.FenceRequest{To: make([]byte, 3)})), "to has 3 bytes, not 16"},
		{errOf(describeRequestFrom(&pb.DescribeRequest{From: make([]byte, 3)})), "from has 3 bytes, not 16"},
		{errOf(invalidateRequestFrom(&pb.InvalidateRequest{Withdrawn: [][]byte{make([]byte, 15)}})), "withdrawn has one of 15 bytes, not 16"},
		{errOf(invalidateRequestFrom(&pb.InvalidateRequest{To: make([]byte, 15)})), "to has 15 bytes, not 16"},
		{errOf(invalidateReplyFrom(&pb.InvalidateReply{Leased: make([][]byte, maxWithdrawn+1)})), "leased has 1025 entries"},
	} {
		if tt.got == nil || !strings.Contains(tt.got.Error(), tt.want) {
			t.Errorf("%v, want %q", tt.got, tt.want)
		}
	}
	fence, err := fenceRequestFrom(nil)
	if err != nil || fence.check() == nil {
		t.Errorf("%v, %v", err, fence.check())
	}
	describe, err := describeRequestFrom(nil)
	if err != nil || describe.check() == nil {
		t.Errorf("%v, %v", err, describe.check())
	}
	invalidate, err := invalidateRequestFrom(nil)
	if err != nil || invalidate.check() == nil {
		t.Errorf("%v, %v", err, invalidate.check())
	}
	m := bootstrapRequestTo(someBootstrap())
	m.Use, m.Lane = math.MaxUint32, math.MaxUint32
	if q, err := bootstrapRequestFrom(m); err != nil || q.check() == nil {
		t.Errorf("%v, %v", err, q.check())
	}
}

func errOf[T any](_ T, err error) error { return err }
