package remote

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// Paths asks the plugin, for at most 5 s.
func (t *Transport) Paths(remote sdk.Attributes) ([]string, error) {
	if _, err := t.able("paths", sdk.FeatureNotify, sdk.FeatureMove); err != nil {
		return nil, err
	}
	if err := bounds.CheckAttributes(remote); err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: paths: %w", t.label, err)
	}
	ctx, cancel := t.callContext(context.Background(), pathsTimeout)
	defer cancel()
	resp, err := t.rpc.Paths(ctx, &pb.PathsRequest{Remote: remote}, t.options...)
	if err := t.callResult(ctx, "paths", err, resp.GetError()); err != nil {
		return nil, err
	}
	paths, err := pathsFromPB(resp)
	if err != nil {
		return nil, t.invalid("paths", err)
	}
	return paths, nil
}

// Probe asks the plugin. Its default deadline is 2 s.
func (t *Transport) Probe(ctx context.Context, target sdk.Target) error {
	if _, err := t.able("probe", sdk.FeatureProbe); err != nil {
		return err
	}
	ctx, cancel := t.callContext(ctx, probeTimeout)
	defer cancel()
	resp, err := t.rpc.Probe(ctx, &pb.ProbeRequest{Target: targetToPB(target)}, t.options...)
	return t.callResult(ctx, "probe", err, resp.GetError())
}

// Drain asks the plugin. Its default deadline is 30 s.
func (t *Transport) Drain(ctx context.Context) error {
	if _, err := t.able("drain", sdk.FeatureDrain); err != nil {
		return err
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	resp, err := t.rpc.Drain(ctx, &pb.DrainRequest{}, t.options...)
	return t.callResult(ctx, "drain", err, resp.GetError())
}

// SetKeys hands the plugin new keys. Its default deadline is 30 s.
func (t *Transport) SetKeys(ctx context.Context, k sdk.Keys) error {
	if _, err := t.able("set keys", sdk.FeatureKeys); err != nil {
		return err
	}
	if err := checkKeys(&k); err != nil {
		return sdk.Errorf(sdk.TooLarge, "plugin %s: set keys: %w", t.label, err)
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	resp, err := t.rpc.SetKeys(ctx, &pb.SetKeysRequest{Keys: keysToPB(&k)}, t.options...)
	return t.callResult(ctx, "set keys", err, resp.GetError())
}

// Accept makes a passive end in the plugin. Its default deadline is 30 s.
func (t *Transport) Accept(ctx context.Context, target sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	l, err := t.maker("accept", target)
	if err != nil {
		return nil, nil, err
	}
	if err := errors.Join(bounds.CheckAttributes(target.Remote), bounds.CheckBootstrap("offer", offer)); err != nil {
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: accept: %w", t.label, err)
	}
	e, err := t.newEndpoint(l, target.Use, h)
	if err != nil {
		return nil, nil, err
	}
	e.passive = true
	answer, err := t.accept(ctx, target, offer, e)
	if err == nil {
		err = e.settle("accept")
	}
	if err != nil {
		e.abandon()
		return nil, nil, err
	}
	return e, answer, nil
}

func (t *Transport) accept(ctx context.Context, target sdk.Target, offer []byte, e *endpoint) ([]byte, error) {
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	req := &pb.AcceptRequest{Target: targetToPB(target), Endpoint: e.id, Offer: offer, Window: e.window.first()}
	resp, err := t.rpc.Accept(ctx, req, t.options...)
	if err := t.callResult(ctx, "accept", err, resp.GetError()); err != nil {
		return nil, err
	}
	if err := bounds.CheckBootstrap("answer", resp.GetAnswer()); err != nil {
		return nil, t.invalid("accept", err)
	}
	return resp.GetAnswer(), nil
}

// Connect makes an active end in the plugin. Its default deadline is 30 s.
func (t *Transport) Connect(ctx context.Context, target sdk.Target, exchange sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	l, err := t.maker("connect", target)
	if err != nil {
		return nil, err
	}
	if err := bounds.CheckAttributes(target.Remote); err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: connect: %w", t.label, err)
	}
	e, err := t.newEndpoint(l, target.Use, h)
	if err != nil {
		return nil, err
	}
	ctx, cancel := t.callContext(ctx, callTimeout)
	defer cancel()
	b := bootstrap{t: t, exchange: exchange}
	err = b.run(ctx, target, e)
	if err == nil {
		err = e.settle("connect")
	}
	if err != nil {
		e.abandon()
		return nil, err
	}
	return e, nil
}

// bootstrap is one Connect call.
type bootstrap struct {
	t        *Transport
	exchange sdk.Exchange
	used     bool
	failed   error // of the exchange
}

func (b *bootstrap) run(ctx context.Context, target sdk.Target, e *endpoint) error {
	stream, err := b.t.rpc.Connect(ctx, b.t.options...)
	if err != nil {
		return b.t.callError(ctx, "connect", err)
	}
	start := &pb.ConnectRequest{Step: &pb.ConnectRequest_Start_{
		Start: &pb.ConnectRequest_Start{Target: targetToPB(target), Endpoint: e.id, Window: e.window.first()},
	}}
	// io.EOF says that the call has ended; Recv knows why.
	if err := stream.Send(start); err != nil && err != io.EOF {
		return b.t.callError(ctx, "connect", err)
	}
	for {
		resp, err := stream.Recv()
		if err == io.EOF {
			return b.t.invalid("connect", errors.New("it ended without saying how"))
		}
		if err != nil {
			return b.t.callError(ctx, "connect", err)
		}
		switch step := resp.GetStep().(type) {
		case *pb.ConnectResponse_Done_:
			return b.done(step.Done)
		case *pb.ConnectResponse_Offer_:
			if err := b.offer(ctx, stream, step.Offer.GetOffer()); err != nil {
				return err
			}
		default:
			return b.t.invalid("connect", errors.New("a step that is none"))
		}
	}
}

// offer carries the plugin's offer to the peer and the answer back.
func (b *bootstrap) offer(ctx context.Context, stream grpc.BidiStreamingClient[pb.ConnectRequest, pb.ConnectResponse], offer []byte) error {
	if b.used {
		return b.t.invalid("connect", errors.New("a second offer"))
	}
	b.used = true
	if err := bounds.CheckBootstrap("offer", offer); err != nil {
		return b.t.invalid("connect", err)
	}
	answer := &pb.ConnectRequest_Answer{}
	got, err := b.exchange(ctx, offer)
	if err == nil {
		if tooLong := bounds.CheckBootstrap("answer", got); tooLong != nil {
			err = sdk.Errorf(sdk.TooLarge, "from the peer: %w", tooLong)
		}
	}
	if err != nil {
		b.failed = err
		answer.Error = errorToPB(err)
	} else {
		answer.Answer = got
	}
	err = stream.Send(&pb.ConnectRequest{Step: &pb.ConnectRequest_Answer_{Answer: answer}})
	if err != nil && err != io.EOF {
		return b.t.callError(ctx, "connect", err)
	}
	return nil
}

// done is the plugin's verdict. If it only passes on that the exchange failed,
// the caller gets its own error back as the cause.
func (b *bootstrap) done(d *pb.ConnectResponse_Done) error {
	err := b.t.answered("connect", d.GetError())
	if err == nil || b.failed == nil {
		return err
	}
	if code := sdk.CodeOf(err); code == codeFromPB(errorToPB(b.failed).GetCode()) {
		return &sdk.Error{Code: code, Message: fmt.Sprintf("plugin %s: connect: %v", b.t.label, b.failed), Cause: b.failed}
	}
	return err
}
