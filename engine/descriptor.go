package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/descriptor"
	"github.com/hawser-transport/hawser/sdk"
)

// What this engine publishes of its memory, and to whom.

const maxDescriptor = control.MaxDescriptor

// reader is a peer that has fetched the descriptor. It is told of every change,
// and asked, of regions that are withdrawn, whether it still uses them. It
// outlives the association: a peer that is only silent may still map what it
// has seen. The memory's lock guards it.
type reader struct {
	incarnation Incarnation
	name        string // address, for people
	identity    string // whose certificate it bears
	described   uint64 // the version that it has seen
	told        uint64 // and the one that it knows of
	heard       time.Time
	// undead says that its life is over, but for a process that may map what was
	// exported: only an operator knows when that is gone.
	undead bool
	// holds are the withdrawn regions that it has seen and has not given up.
	holds   map[*Region]struct{}
	pushing bool
}

// bodyLocked is the descriptor as it is now.
func (m *memory) bodyLocked() []byte {
	if m.body != nil {
		return m.body
	}
	d := descriptor.Descriptor{Provider: m.e.incarnation, Version: m.version, Tombstones: m.tombstones}
	for _, r := range m.regions {
		if r.opts.Private || r.withdrawn || r.published == 0 {
			continue
		}
		b := descriptor.Buffer{
			Base: r.region.Base, Length: r.region.Length, Kind: r.region.Kind, Device: r.region.Device,
			Writable: !r.opts.ReadOnly, Capability: r.capability,
		}
		for _, inst := range *r.known.Load() {
			b.Ways = append(b.Ways, descriptor.Way{Transport: inst.Description.Name, Instance: inst.ID, Attributes: r.at[inst].attrs})
		}
		d.Buffers = append(d.Buffers, b)
	}
	m.body = d.Encode()
	return m.body
}

// sizeLocked is at least as large as the descriptor, without making it.
func (m *memory) sizeLocked() int {
	size := 200 + 35*len(m.tombstones)
	for _, r := range m.regions {
		size += 250
		for _, g := range r.at {
			size += 150
			for k, v := range g.attrs {
				size += 6*len(k) + 4*len(v)/3 + 10 // a key's bytes may be escaped
			}
		}
	}
	return size
}

// changedLocked makes a new version of the descriptor, and has everybody told
// who has an older one.
func (m *memory) changedLocked() {
	m.version++
	m.body = nil
	for _, x := range m.readers {
		m.pushLocked(x)
	}
	m.signalLocked()
}

// Describe answers a peer that reads the descriptor.
func (h *answers) Describe(ctx context.Context, req control.DescribeRequest) (control.DescribeReply, error) {
	a, err := h.sender(ctx, "describe", req.From)
	if err != nil {
		return control.DescribeReply{}, err
	}
	if req.To != h.e.incarnation {
		return control.DescribeReply{}, notHere("describe", req.To, h.e.incarnation)
	}
	a.inUse()
	return h.e.memory.describe(a, req)
}

// inUse keeps an association over which nothing is sent but ops.
func (a *association) inUse() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.used = time.Now()
}

func notHere(call string, asked, is Incarnation) error {
	return sdk.Errorf(sdk.PeerRestarted, "%s: incarnation %s is not here, %s is", call, asked.Short(), is.Short())
}

func (m *memory) describe(a *association, req control.DescribeRequest) (control.DescribeReply, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	body := m.bodyLocked()
	if len(body) > maxDescriptor {
		return control.DescribeReply{}, sdk.Errorf(sdk.TooLarge, "describe: the descriptor has %d bytes, the limit is %d", len(body), maxDescriptor)
	}
	x := m.readers[req.From]
	if x == nil {
		if limit := 2 * m.e.cfg.Sessions.Max; len(m.readers) >= limit {
			return control.DescribeReply{}, sdk.Errorf(sdk.Busy, "describe: this engine has %d readers of its memory, twice sessions.max; retire the mappings of those that are gone", limit)
		}
		x = &reader{incarnation: req.From, holds: map[*Region]struct{}{}}
		m.readers[req.From] = x
	}
	x.name, x.identity = a.address, a.identity
	x.described, x.told, x.heard = m.version, m.version, time.Now()
	m.e.stats.descriptors[descServed+boolean(req.Known == m.version)].Add(1)
	if req.Known == m.version {
		return control.DescribeReply{Version: m.version}, nil
	}
	return control.DescribeReply{Version: m.version, Descriptor: body}, nil
}

// pushLocked tells a reader of the latest version, and asks it for what it still
// holds, until it has answered both.
func (m *memory) pushLocked(x *reader) {
	if x.pushing || x.told >= m.version && len(x.holds) == 0 || m.e.ctx.Err() != nil {
		return
	}
	x.pushing = true
	m.e.tasks.Go(func() { m.push(x) })
}

// pushMin is the first wait before a reader is asked again: most often it has to
// have its transports give up what it holds, which takes it milliseconds.
const pushMin = 5 * time.Millisecond

func (m *memory) push(x *reader) {
	for wait := pushMin; ; wait = min(2*wait, helloMax) {
		done, news := m.pushOnce(x)
		if done {
			return
		}
		if news {
			wait = pushMin / 2
			continue
		}
		select {
		case <-time.After(wait):
		case <-m.e.ctx.Done():
		}
		m.e.freeze.Awake()
	}
}

// pushOnce reports whether there is nothing more to say, or, if there is, whether
// that is news for the reader.
func (m *memory) pushOnce(x *reader) (done, news bool) {
	m.mu.Lock()
	if m.e.ctx.Err() != nil || m.readers[x.incarnation] != x || x.undead || x.told >= m.version && len(x.holds) == 0 {
		x.pushing = false
		m.mu.Unlock()
		return true, false
	}
	req := control.InvalidateRequest{From: m.e.incarnation, To: x.incarnation, Version: m.version}
	asked := map[Capability]*Region{}
	for r := range x.holds {
		if len(req.Withdrawn) < descriptor.MaxBuffers {
			req.Withdrawn = append(req.Withdrawn, r.capability)
			asked[r.capability] = r
		}
	}
	name, identity := x.name, x.identity
	m.mu.Unlock()

	reply, err := m.e.invalidate(x.incarnation, name, identity, req)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.e.stats.descriptors[descTold+boolean(err != nil)].Add(1)
	if err != nil {
		m.e.log.Debug("peer not told of changed memory", "peer", name, "error", err)
		return false, false
	}
	x.heard, x.told = time.Now(), max(x.told, req.Version)
	for c, r := range asked {
		if !slices.Contains(reply.Leased, c) {
			delete(x.holds, r)
		}
	}
	m.signalLocked()
	return false, len(x.holds) == 0 || x.told < m.version
}

// invalidate makes the call, over the peer's association if there is one.
func (e *Engine) invalidate(i Incarnation, address, identity string, req control.InvalidateRequest) (control.InvalidateReply, error) {
	e.directory.mu.Lock()
	a := e.directory.byIncarnation[i]
	e.directory.mu.Unlock()
	if a != nil {
		reply, err := a.client.Invalidate(e.ctx, req)
		if !a.lost(err) && errors.Is(err, sdk.PeerRestarted) {
			a.die(sdk.Errorf(sdk.PeerRestarted, "the peer at %s is a new incarnation", a.address))
		}
		return reply, err
	}
	client := e.control.Dial(address)
	client.Bind(identity)
	defer client.Close() //nolint:errcheck // it has no more to say
	ctx, cancel := context.WithTimeout(e.ctx, e.cfg.RPC.ProbeTimeout())
	defer cancel()
	reply, err := client.Invalidate(ctx, req)
	if control.Gone(err) || errors.Is(err, control.ErrAnother) || errors.Is(err, sdk.PeerRestarted) {
		e.memory.forget(i)
	}
	return reply, err
}

// forget drops a reader that is known to be gone, unless something of it may be
// left.
func (m *memory) forget(i Incarnation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.readers[i]; x != nil && !x.undead {
		delete(m.readers, i)
		m.signalLocked()
	}
}

// haunted takes in that a process of a reader's outlives it.
func (m *memory) haunted(i Incarnation, identity string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if x := m.readers[i]; x != nil && x.identity == identity {
		x.undead = true
	}
}

// sweepReaders forgets readers that were silent for so long that nothing is
// expected of them, and hold nothing.
func (m *memory) sweepReaders(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, x := range m.readers {
		if len(x.holds) == 0 && x.silentFor(m.e, now) >= m.e.silence() && !m.mapsLocked(x) && m.gates.shut(i) == 0 {
			delete(m.readers, i)
		}
	}
}

// mapsLocked reports whether a reader may map memory that was exported to it,
// however long it is silent.
func (m *memory) mapsLocked(x *reader) bool {
	return slices.ContainsFunc(m.regions, func(r *Region) bool {
		return r.exported() && r.published != 0 && !r.withdrawn && x.described >= r.published
	})
}

// silentFor is how long the reader has said nothing while this process ran.
func (x *reader) silentFor(e *Engine, now time.Time) time.Duration {
	return min(now.Sub(x.heard), now.Sub(e.freeze.Thawed(now)))
}
