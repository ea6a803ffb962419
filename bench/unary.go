package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// One unary gRPC call per notification, straight to the peer's process: what
// many systems do today.

const unaryMethod = "/bench.Notify/Notify"

type unaryServer interface {
	notify(*wrapperspb.BytesValue) *wrapperspb.BytesValue
}

type unaryPeer struct{ count uint64 }

func (p *unaryPeer) notify(in *wrapperspb.BytesValue) *wrapperspb.BytesValue { return in }

var unaryService = grpc.ServiceDesc{
	ServiceName: "bench.Notify",
	HandlerType: (*unaryServer)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Notify",
		Handler: func(srv any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := new(wrapperspb.BytesValue)
			if err := decode(in); err != nil {
				return nil, err
			}
			return srv.(unaryServer).notify(in), nil
		},
	}},
}

func serveUnary() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := grpc.NewServer()
	s.RegisterService(&unaryService, &unaryPeer{})
	fmt.Println(l.Addr())
	go func() { _ = s.Serve(l) }()
	untilEOF()
	s.Stop()
	return nil
}

type unaryClient struct {
	conn *grpc.ClientConn
	peer *child
}

func openUnary() (client, error) {
	peer, err := self("grpc")
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient(peer.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		peer.stop()
		return nil, err
	}
	return &unaryClient{conn, peer}, nil
}

func (c *unaryClient) call(payload []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.conn.Invoke(ctx, unaryMethod, wrapperspb.Bytes(payload), new(wrapperspb.BytesValue))
}

func (c *unaryClient) RoundTrip(payload []byte) error { return c.call(payload) }

// Send returns when the call has: its answer is the acknowledgement.
func (c *unaryClient) Send(payload []byte) (func() error, error) {
	if err := c.call(payload); err != nil {
		return nil, err
	}
	return func() error { return nil }, nil
}

func (c *unaryClient) Close() {
	_ = c.conn.Close()
	c.peer.stop()
}
