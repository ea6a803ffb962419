//go:build linux

package engine

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hawser-transport/hawser/sdk"
)

// tardy is a transport that carries out Withdraw only once it is let go on.
type tardy struct {
	*undying
	withdrawing, goOn    chan struct{}
	announced            atomic.Int64
	first                atomic.Bool // Withdraw was called
	withdrawn, overtaken atomic.Bool
}

func (x *tardy) Withdraw(ctx context.Context, provider Incarnation, c Capability) error {
	if x.first.CompareAndSwap(false, true) {
		select {
		case x.withdrawing <- struct{}{}:
		case <-ctx.Done(): // the test is over
			return ctx.Err()
		}
		select {
		case <-x.goOn:
		case <-ctx.Done():
			return ctx.Err()
		}
		x.withdrawn.Store(true)
	}
	return x.undying.Withdraw(ctx, provider, c)
}

func (x *tardy) Announce(ctx context.Context, r sdk.RemoteRegion) error {
	if x.announced.Add(1) > 1 && !x.withdrawn.Load() {
		x.overtaken.Store(true)
	}
	return x.undying.Announce(ctx, r)
}

// A region that is used again while a transport is being told that it is not is
// announced after that, not before.
func TestAnAnnouncementDoesNotOvertakeAWithdrawal(t *testing.T) {
	moving(t, func(w *world) {
		x := &tardy{withdrawing: make(chan struct{}), goOn: make(chan struct{})}
		w.only("a:1", func(from sdk.Transport) sdk.Transport {
			x.undying = newUndying(from)
			close(x.letGo)
			return x
		})
		a, _, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		_ = g.Close() // the last handle: regions are given up
		<-x.withdrawing
		again := w.segment(a, "b:1")
		defer again.Close()
		first := w.submit(a, SubmitOptions{}, Op{Kind: Write, Local: mine, Segment: again, Address: theirs.Address(), Length: 100})
		synctest.Wait()
		close(x.goOn)
		if err := w.done(first); err != nil {
			t.Error(err)
		}
		if x.overtaken.Load() {
			t.Error("it was announced before the withdrawal")
		}
		fill(mine.Bytes(), 7)
		if err := w.write(a, mine, theirs, again, 100); err != nil || !bytes.Equal(theirs.Bytes(), filled(100, 7)) {
			t.Errorf("the region cannot be used any more: %v", err)
		}
	})
}

// vague is a transport that registers regions, and gives answers that nobody may
// publish.
type vague struct{ *undying }

func (v vague) Register(ctx context.Context, r sdk.Region) (sdk.Attributes, error) {
	_, err := v.undying.Register(ctx, r)
	return sdk.Attributes{"\xff": ""}, err
}

// A region that could not be registered is left with no transport: one may have
// it all the same.
func TestARefusedRegionIsLeftNowhere(t *testing.T) {
	moving(t, func(w *world) {
		w.only("a:1", func(from sdk.Transport) sdk.Transport {
			u := newUndying(from)
			close(u.letGo)
			return vague{u}
		})
		a := w.open("a:1")
		defer w.shut(a)
		if _, err := a.AllocateHost(100, RegionOptions{}); !errors.Is(err, InvalidArgument) {
			t.Errorf("allocate: %v", err)
		}
		synctest.Wait()
		if own, _ := w.fast.Regions("a:1"); own != 0 {
			t.Error("the transport has it")
		}
	})
}

// What is taken back of a source that has ended is not that of the next one of
// the same life: a transport that was made to forget a region is told again.
func TestAForgottenRegionIsAnnouncedAgain(t *testing.T) {
	moving(t, func(w *world) {
		x := &tardy{withdrawing: make(chan struct{}), goOn: make(chan struct{})}
		w.only("a:1", func(from sdk.Transport) sdk.Transport {
			x.undying = newUndying(from)
			close(x.letGo)
			return x
		})
		a, b, mine, theirs, g, end := w.movers(100)
		defer end()
		if err := w.write(a, mine, theirs, g, 1); err != nil {
			t.Fatal(err)
		}
		go a.memory.source(b.incarnation).a.die(sdk.Errorf(sdk.Unavailable, "test: %w", errForgotten))
		<-x.withdrawing
		if err := w.write(a, mine, theirs, g, 100); err != nil {
			t.Fatal(err)
		}
		close(x.goOn)
		synctest.Wait()
		for range 2 {
			if err := w.write(a, mine, theirs, g, 100); err != nil {
				t.Error(err)
			}
		}
	})
}
