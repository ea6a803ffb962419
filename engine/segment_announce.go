package engine

import (
	"context"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/sdk"
)

// What a source has told this engine's transports of the provider's regions.

type announceKey struct {
	inst   *pluginhost.Instance
	buffer bufferKey
}

// announcement is what one instance knows of one region. The source's lock
// guards it.
type announcement struct {
	remote uint64 // the provider's instance whose attributes it has
	ready  bool   // the call has returned nil
	calls  bool   // a call is under way
	err    error
	retry  time.Time // when to try again after an error
	used   time.Time
}

// knowledge is what an instance knows of a region.
type knowledge uint8

const (
	knows    knowledge = iota
	learns             // it is being told, and the mover will look again
	declines           // it would not hear of it a moment ago
)

// announcedLocked tells whether a lane's instance knows an op's region as the
// provider's instance published it; if not, it is told.
func (s *source) announcedLocked(l *lane, o *op, now time.Time) knowledge {
	inst, b, k, w := l.inst, o.buffer, o.key, o.buffer.Way(l.transport, l.remote)
	key := announceKey{inst, k}
	if refused, ok := s.parting[key]; ok {
		// It would arrive before the withdrawal, which would then be of it.
		if refused {
			return declines // and may be for long
		}
		return learns
	}
	if s.precededLocked(k) {
		return learns
	}
	x := s.told[key]
	if x == nil {
		x = &announcement{}
		s.told[key] = x
	}
	x.used = now
	switch {
	case x.ready && x.remote == w.Instance:
		return knows
	case x.calls:
		return learns
	case now.Before(x.retry) || s.dead != nil:
		return declines
	}
	x.calls, x.ready, x.remote = true, false, w.Instance
	r := sdk.RemoteRegion{
		Provider: s.incarnation, Instance: w.Instance, Capability: b.Capability, Kind: b.Kind,
		Base: b.Base, Length: b.Length, Writable: b.Writable, Attributes: w.Attributes, Version: o.version,
	}
	s.e.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(s.e.ctx, registerTimeout)
		err := inst.Mover.Announce(ctx, r)
		cancel()
		s.mu.Lock()
		x.calls, x.ready, x.err = false, err == nil, err
		if err != nil {
			x.retry = time.Now().Add(s.e.spread(helloMax))
		}
		gone, all := s.told[key] != x, s.dead != nil
		s.mu.Unlock()
		if gone { // taken back meanwhile, or the provider is dead, or the instance
			if all || !k.c.IsZero() { // a withdrawal without capability is of all regions
				s.takeBack(inst, k.c)
			}
			s.left(k)
		}
		s.mover.announced(k)
	})
	return learns
}

// precededLocked reports whether ops use an older version of a region without
// capability: they name it by its base alone, and would go on in this one as
// soon as an instance knows it.
func (s *source) precededLocked(k bufferKey) bool {
	if k.c.IsZero() {
		for other := range s.leaving {
			if other.c.IsZero() && other.base == k.base && other.version < k.version {
				return true
			}
		}
	}
	return false
}

// unknown takes in that an instance refuses an op as if it had not been told of
// the region, which may be so: it is told once more before the next op.
func (s *source) unknown(inst *pluginhost.Instance, k bufferKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.told[announceKey{inst, k}]; x != nil {
		x.ready = false
	}
}

// toldLocked reports whether any instance was told of a region.
func (s *source) toldLocked(k bufferKey) bool {
	for key := range s.told {
		if key.buffer == k {
			return true
		}
	}
	return false
}

// forgetLocked takes one announcement back. Until that is done the region counts
// as in use.
func (s *source) forgetLocked(k announceKey) {
	x := s.told[k]
	delete(s.told, k)
	s.leaving[k.buffer]++
	if !k.buffer.c.IsZero() {
		s.parting[k] = false
	}
	if x.calls {
		return // the call's end does it
	}
	s.e.tasks.Go(func() {
		if !k.buffer.c.IsZero() { // what older providers have is replaced by the next, or goes with all
			s.takeBack(k.inst, k.buffer.c)
		}
		s.left(k.buffer)
	})
}

// left is one withdrawal, or more, less under way.
func (s *source) left(ks ...bufferKey) {
	s.mu.Lock()
	for _, k := range ks {
		s.leftLocked(k)
	}
	s.mu.Unlock()
	s.fade()
	s.mover.stir() // what waited for it
}

// fade takes a dead source out once nothing of the provider's is in use any more.
func (s *source) fade() {
	used := s.mover.uses()
	s.mu.Lock()
	used = used || s.dead == nil || len(s.leaving) > 0
	s.mu.Unlock()
	if !used {
		m := &s.e.memory
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.fading, s)
		m.signalLocked()
	}
}

// leftLocked is one withdrawal less under way.
func (s *source) leftLocked(k bufferKey) {
	if s.leaving[k]--; s.leaving[k] <= 0 {
		delete(s.leaving, k)
	}
}

// takeBack has an instance give up a region of the provider's, or all of them,
// however long that takes.
func (s *source) takeBack(inst *pluginhost.Instance, c sdk.Capability) {
	k := announceKey{inst, bufferKey{c: c}}
	defer s.parted(k, true)
	for wait := helloMin; ; wait = min(2*wait, helloMax) {
		ctx, cancel := context.WithTimeout(s.e.ctx, registerTimeout)
		err := inst.Mover.Withdraw(ctx, s.incarnation, c)
		cancel()
		if err == nil || s.e.ctx.Err() != nil {
			return
		}
		s.parted(k, false)
		s.e.log.Debug("region not taken back yet", "transport", inst.Name, "peer", s.a.peer(), "region", c, "error", err)
		select {
		case <-inst.Gone:
			return
		case <-time.After(wait):
		case <-s.e.ctx.Done():
			return
		}
		s.e.freeze.Awake()
	}
}

// parted takes in that a withdrawal was refused, or is over. Ops may wait for
// that which use the region again.
func (s *source) parted(k announceKey, over bool) {
	s.mu.Lock()
	if _, ok := s.parting[k]; ok && !over {
		s.parting[k] = true
	} else {
		delete(s.parting, k)
	}
	s.mu.Unlock()
	s.mover.stir()
}
