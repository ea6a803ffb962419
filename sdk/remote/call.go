package remote

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// Deadlines of calls whose context has none.
const (
	openTimeout  = 10 * time.Second
	callTimeout  = 30 * time.Second
	closeTimeout = 10 * time.Second
	pathsTimeout = 5 * time.Second
	probeTimeout = 2 * time.Second
)

// openMessage is the largest message while the plugin's limits are not known.
const openMessage = 1 << 20

// callContext gives a call its deadline, and ends it with the transport.
func (t *Transport) callContext(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	var cancel context.CancelFunc
	if _, ok := ctx.Deadline(); ok {
		ctx, cancel = context.WithCancel(ctx)
	} else {
		ctx, cancel = context.WithTimeout(ctx, timeout)
	}
	stop := context.AfterFunc(t.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// ready returns the open link, or why the plugin cannot be called.
func (t *Transport) ready(what string) (*hostLink, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ctx.Err() != nil:
		return nil, t.goneLocked(what)
	case t.mu.closing:
		return nil, sdk.Errorf(sdk.Closed, "plugin %s: %s: closed", t.label, what)
	case t.mu.link == nil:
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: %s: not open", t.label, what)
	}
	return t.mu.link, nil
}

// able is ready for a method of an ability, or of one of several.
func (t *Transport) able(what string, of ...sdk.Feature) (*hostLink, error) {
	l, err := t.ready(what)
	if err == nil && !slices.ContainsFunc(of, t.desc.Has) {
		return nil, sdk.Errorf(sdk.Unsupported, "plugin %s: %s: it has no ability %q", t.label, what, of[0])
	}
	return l, err
}

// maker is able for the making of the target's endpoint.
func (t *Transport) maker(what string, target sdk.Target) (*hostLink, error) {
	of, lanes := sdk.FeatureNotify, 1
	if target.Use == sdk.UseMemory {
		of, lanes = sdk.FeatureMove, t.desc.Move.Parallel
	}
	l, err := t.able(what, of)
	if err == nil && (!target.Use.Valid() || target.Lane < 0 || target.Lane >= lanes) {
		return nil, sdk.Errorf(sdk.InvalidArgument, "plugin %s: %s: lane %d for %v, there are %d", t.label, what, target.Lane, target.Use, lanes)
	}
	return l, err
}

// goneLocked is the error of whatever comes after the end.
func (t *Transport) goneLocked(what string) error {
	if t.mu.reason.rank == rankClosed {
		return sdk.Errorf(sdk.Closed, "plugin %s: %s: closed", t.label, what)
	}
	if t.mu.reason.err == nil {
		return sdk.Errorf(sdk.PluginExited, "plugin %s: %s: it is gone", t.label, what)
	}
	return sdk.Errorf(sdk.PluginExited, "%s: %w", what, t.mu.reason.err)
}

func (t *Transport) gone(what string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.goneLocked(what)
}

// callResult is the error of a call: of the channel, or in the answer.
func (t *Transport) callResult(ctx context.Context, what string, err error, answer *pb.Error) error {
	if err != nil {
		return t.callError(ctx, what, err)
	}
	return t.answered(what, answer)
}

// answered makes an error of what the plugin said. Codes outside the closed
// set become Refused: it did answer, and it was not yes.
func (t *Transport) answered(what string, e *pb.Error) error {
	if e == nil {
		return nil
	}
	return sdk.Errorf(codeFromPB(e.GetCode()), "plugin %s: %s: %s", t.label, what, bounds.Text(e.GetMessage()))
}

// callError makes an error of a failure of the control channel.
func (t *Transport) callError(ctx context.Context, what string, err error) error {
	if t.ctx.Err() != nil {
		return t.gone(what)
	}
	code := sdk.Refused
	switch status.Code(err) {
	case codes.Unimplemented:
		code = sdk.Unsupported
	case codes.Unavailable:
		code = sdk.PluginExited
	case codes.DeadlineExceeded:
		return sdk.Errorf(sdk.DeadlineExceeded, "plugin %s: %s: no answer: %w", t.label, what, context.DeadlineExceeded)
	case codes.Canceled:
		if ctx.Err() == nil {
			code = sdk.PluginExited
			break
		}
		return sdk.Errorf(sdk.DeadlineExceeded, "plugin %s: %s: given up: %w", t.label, what, ctx.Err())
	case codes.ResourceExhausted:
		code = sdk.TooLarge
	}
	return sdk.Errorf(code, "plugin %s: %s: %s", t.label, what, bounds.Text(status.Convert(err).Message()))
}

// invalid is the error of an answer that breaks the contract.
func (t *Transport) invalid(what string, err error) error {
	return sdk.Errorf(sdk.Refused, "plugin %s: %s: its answer breaks the contract: %w", t.label, what, err)
}

// sendError makes an error of a failure to put a record on the link.
func (t *Transport) sendError(what string, err error) error {
	switch {
	case errors.Is(err, link.ErrFull):
		return sdk.Errorf(sdk.Backpressure, "plugin %s: %s: the link has no room", t.label, what)
	case errors.Is(err, link.ErrClosed):
		return t.gone(what)
	}
	return sdk.Errorf(sdk.InvalidArgument, "plugin %s: %s: %w", t.label, what, err)
}
