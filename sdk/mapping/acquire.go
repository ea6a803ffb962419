package mapping

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Acquire leases the mapping of a key for length bytes from offset on. If
// there is none it is imported, once however many ask; who leaves because ctx
// ends does not end the import. A failed import is the error of all who wait
// for it, and the next Acquire tries again. For a kind with an exclusive base it
// first waits for the leases of the base's old mapping: hold none of them.
//
// [sdk.StaleCapability]: the key is not what was announced last of its place.
// [sdk.InvalidArgument]: the range is not within the source's.
// [sdk.Busy]: too many mappings, all of them in use; or the old mapping of an
// exclusive base was still held when ctx ended, or is stuck.
// [sdk.DeadlineExceeded]: ctx ended while the import was under way.
func (c *Cache[M]) Acquire(ctx context.Context, k Key, offset, length uint64) (Lease[M], error) {
	r, err := c.acquire(ctx, k, offset, length, nil)
	if err != nil {
		return Lease[M]{}, err
	}
	return lease(r, &slot{}), nil
}

// acquire counts a lease for a view, or, with nil, for the cache itself.
func (c *Cache[M]) acquire(ctx context.Context, k Key, offset, length uint64, l *Local[M]) (*ref[M], error) {
	for {
		c.mu.Lock()
		m, blocked, err := c.find(k, offset, length)
		if m == nil {
			changed := c.changed
			c.unlock()
			if err != nil {
				return nil, err
			}
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil, blocked
			}
		}
		r := m.refs[0]
		if l != nil {
			r = l.refTo(m)
		}
		r.taken.Add(1)
		hit := m.state.Load() == live
		if hit {
			c.tell(Event{What: Hit, Key: k, Kind: m.source.Kind.Name})
		}
		c.unlock()
		if hit {
			return r, nil
		}
		ok, err := c.imported(ctx, m)
		if ok {
			return r, nil
		}
		r.release()
		if err != nil {
			return nil, err
		}
	}
}

// imported waits for an import. Neither true nor an error: it was retired
// meanwhile.
func (c *Cache[M]) imported(ctx context.Context, m *imported[M]) (bool, error) {
	select {
	case <-m.ready:
	case <-ctx.Done():
		return false, sdk.Errorf(sdk.DeadlineExceeded, "import mapping %s: it is still under way: %w", m.source.Key, context.Cause(ctx))
	}
	c.mu.Lock()
	defer c.unlock()
	if m.cause != Failed {
		return m.state.Load() == live, nil
	}
	return false, m.err
}

// find returns the mapping to lease, and begins its import if there is none.
// Without one either err says why, or the caller waits until something has
// changed, and blocked is the error if it cannot. The lock is held.
func (c *Cache[M]) find(k Key, offset, length uint64) (m *imported[M], blocked, err error) {
	if c.closed {
		return nil, nil, errClosed()
	}
	p := c.places[k.place()]
	switch {
	case p == nil || p.source == nil:
		return nil, nil, sdk.Errorf(sdk.StaleCapability, "mapping %s: nothing is announced there; read the descriptor anew", k)
	case p.source.Key != k:
		return nil, nil, sdk.Errorf(sdk.StaleCapability, "mapping %s: it was replaced by %s; read the descriptor anew", k, p.source.Key)
	case !within(offset, length, p.source.Length):
		return nil, nil, sdk.Errorf(sdk.InvalidArgument, "mapping %s: %d bytes from %d on are not within its %d", k, length, offset, p.source.Length)
	case p.mapping != nil:
		return p.mapping, nil, nil
	case p.source.Kind.ExclusiveBase && p.old > 0:
		blocked, err = c.predecessor(p.source.place())
		return nil, blocked, err
	case len(c.mappings) >= c.max:
		blocked, err = c.makeRoom()
		return nil, blocked, err
	}
	return c.begin(p), nil, nil
}

// predecessor says what an exclusive base waits for. Waiting for what the
// driver refuses might not end.
func (c *Cache[M]) predecessor(at place) (blocked, err error) {
	for m := range c.mappings {
		if m.source.place() != at {
			continue
		}
		if blocked = m.waiting("import after"); m.stuck.Step != "" {
			return nil, blocked
		}
	}
	return blocked, nil
}

// makeRoom evicts the mapping that has been idle for longest, unless one is
// about to go anyway.
func (c *Cache[M]) makeRoom() (blocked, err error) {
	busy := sdk.Errorf(sdk.Busy, "there are %d mappings, the limit, and all are in use", len(c.mappings))
	now := time.Now()
	for {
		var victim *imported[M]
		for m := range c.mappings {
			if m.cleaning && m.stuck.Step == "" {
				return busy, nil
			}
			if m.look(now); m.idle() && (victim == nil || m.idlerThan(victim)) {
				victim = m
			}
		}
		if victim == nil {
			return nil, busy
		}
		c.retire(victim, Crowded) // a hit may have come first: then another one
	}
}

// begin starts the import of a spot's source.
func (c *Cache[M]) begin(p *spot[M]) *imported[M] {
	c.number++
	now := time.Now()
	ctx, cancel := context.WithCancel(c.ctx)
	m := &imported[M]{cache: c, source: p.source.clone(), number: c.number, ready: make(chan struct{}), cancel: cancel, since: now, used: now}
	m.refs = []*ref[M]{{of: m}}
	p.mapping = m
	c.mappings[m] = struct{}{}
	c.tasks.Go(func() { c.fetch(ctx, m) })
	return m
}

// fetch calls the importer. One that panics, or ends its goroutine, has failed.
func (c *Cache[M]) fetch(ctx context.Context, m *imported[M]) {
	var value M
	err := errors.New("the importer ended its goroutine")
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the importer panicked: %v", r)
		}
		c.fetched(m, value, err)
	}()
	value, err = c.importer(ctx, m.source, &m.cleanup)
}

// fetched publishes what came of an import, unless it was retired meanwhile.
func (c *Cache[M]) fetched(m *imported[M], value M, err error) {
	c.mu.Lock()
	defer c.unlock()
	m.cancel()
	m.returned = true
	now := time.Now()
	took := now.Sub(m.since)
	switch {
	case m.state.Load() != importing:
		c.clean(m)
	case err != nil:
		code := sdk.CodeOf(err)
		if !code.Valid() {
			code = sdk.Refused
		}
		m.err = sdk.Errorf(code, "import mapping %s: %w", m.source.Key, err)
		c.totals.Failed++
		c.tell(Event{What: ImportFailed, Key: m.source.Key, Kind: m.source.Kind.Name, Err: m.err, Took: took})
		c.retire(m, Failed)
	default:
		m.value, m.since, m.used = value, now, now
		m.state.Store(live)
		close(m.ready)
		c.totals.Imported++
		c.tell(Event{What: Imported, Key: m.source.Key, Kind: m.source.Kind.Name, Took: took})
	}
}
