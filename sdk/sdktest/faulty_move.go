package sdktest

import (
	"context"

	"github.com/hawser-transport/hawser/sdk"
)

func (f *FaultyTransport) mover(ctx context.Context) (sdk.Mover, error) {
	m, ok := f.inner.(sdk.Mover)
	if !ok {
		return nil, sdk.Errorf(sdk.Unsupported, "the wrapped transport moves no memory")
	}
	return m, f.answer(ctx)
}

// Register implements [sdk.Mover].
func (f *FaultyTransport) Register(ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	m, err := f.mover(ctx)
	if err != nil {
		if r.File != nil {
			r.File.Close() //nolint:errcheck // it is not used
		}
		return nil, err
	}
	return m.Register(ctx, r)
}

// Deregister implements [sdk.Mover].
func (f *FaultyTransport) Deregister(ctx context.Context, c sdk.Capability) error {
	m, err := f.mover(ctx)
	if err != nil {
		return busy(err)
	}
	return m.Deregister(ctx, c)
}

// Announce implements [sdk.Mover].
func (f *FaultyTransport) Announce(ctx context.Context, r sdk.RemoteRegion) error {
	m, err := f.mover(ctx)
	if err != nil {
		return err
	}
	return m.Announce(ctx, r)
}

// Withdraw implements [sdk.Mover].
func (f *FaultyTransport) Withdraw(ctx context.Context, provider sdk.Incarnation, c sdk.Capability) error {
	m, err := f.mover(ctx)
	if err != nil {
		return busy(err)
	}
	return m.Withdraw(ctx, provider, c)
}

// busy is the error of a release that has not finished.
func busy(err error) error {
	if sdk.CodeOf(err) == sdk.DeadlineExceeded {
		return sdk.Errorf(sdk.Busy, "%w", err)
	}
	return err
}
