package sdk

import (
	"context"
	"io"

	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// Connect runs one bootstrap: start, offer, answer, done.
func (s *server) Connect(stream grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return finishConnect(stream, Errorf(InvalidArgument, "a bootstrap begins with its start"))
	}
	n, err := s.maker(start.GetTarget())
	if err != nil {
		return err
	}
	target, err := s.target(start.GetTarget())
	if err != nil {
		return finishConnect(stream, err)
	}
	e, err := s.newEndpoint(stream.Context(), target.Use, start.GetEndpoint(), start.GetWindow())
	if err != nil {
		return finishConnect(stream, err)
	}
	x := &exchange{stream: stream}
	ep, err := n.Connect(stream.Context(), target, x.run, e)
	if err == nil {
		err = e.attach(ep)
	}
	if err != nil {
		e.forget()
		return finishConnect(stream, err)
	}
	if err := finishConnect(stream, nil); err != nil {
		// The host does not know the endpoint.
		ep.Close()
		return err
	}
	return nil
}

func finishConnect(stream grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse], err error) error {
	return stream.Send(&pb.ConnectResponse{Step: &pb.ConnectResponse_Done_{
		Done: &pb.ConnectResponse_Done{Error: errorToPB(err)},
	}})
}

// exchange carries one offer and its answer over the Connect call.
type exchange struct {
	stream grpc.BidiStreamingServer[pb.ConnectRequest, pb.ConnectResponse]
	used   bool
}

func (x *exchange) run(ctx context.Context, offer []byte) ([]byte, error) {
	if x.used {
		return nil, Errorf(InvalidArgument, "exchange was called twice")
	}
	x.used = true
	if err := bounds.CheckBootstrap("offer", offer); err != nil {
		return nil, coded(TooLarge, err, "exchange")
	}
	err := x.stream.Send(&pb.ConnectResponse{Step: &pb.ConnectResponse_Offer_{
		Offer: &pb.ConnectResponse_Offer{Offer: offer},
	}})
	if err != nil {
		return nil, Errorf(Closed, "sending the offer to the host: %w", err)
	}
	type reply struct {
		req *pb.ConnectRequest
		err error
	}
	// Recv ends with the call; the context may end before.
	got := make(chan reply, 1)
	go func() {
		req, err := x.stream.Recv()
		got <- reply{req, err}
	}()
	select {
	case <-ctx.Done():
		return nil, Errorf(DeadlineExceeded, "no answer to the offer: %w", ctx.Err())
	case r := <-got:
		if r.err != nil {
			if r.err == io.EOF {
				return nil, Errorf(Closed, "the host has given up the bootstrap")
			}
			return nil, Errorf(DeadlineExceeded, "no answer to the offer: %w", r.err)
		}
		answer := r.req.GetAnswer()
		if answer == nil {
			return nil, Errorf(InvalidArgument, "the host sent something else than an answer")
		}
		if answer.GetError() != nil {
			return nil, errorFromPB(answer.GetError())
		}
		return answer.GetAnswer(), nil
	}
}

// Accept makes the passive end.
func (s *server) Accept(ctx context.Context, req *pb.AcceptRequest) (*pb.AcceptResponse, error) {
	n, err := s.maker(req.GetTarget())
	if err != nil {
		return nil, err
	}
	answer, err := s.accept(ctx, n, req)
	if err != nil {
		return &pb.AcceptResponse{Error: errorToPB(err)}, nil
	}
	return &pb.AcceptResponse{Answer: answer}, nil
}

func (s *server) accept(ctx context.Context, n Notifier, req *pb.AcceptRequest) ([]byte, error) {
	if err := bounds.CheckBootstrap("offer", req.GetOffer()); err != nil {
		return nil, coded(TooLarge, err, "accept")
	}
	target, err := s.target(req.GetTarget())
	if err != nil {
		return nil, err
	}
	e, err := s.newEndpoint(ctx, target.Use, req.GetEndpoint(), req.GetWindow())
	if err != nil {
		return nil, err
	}
	ep, answer, err := n.Accept(ctx, target, req.GetOffer(), e)
	if err == nil {
		err = e.attach(ep)
	}
	if err != nil {
		e.forget()
		return nil, err
	}
	if err := bounds.CheckBootstrap("answer", answer); err != nil {
		ep.Close()
		return nil, coded(TooLarge, err, "accept")
	}
	return answer, nil
}
