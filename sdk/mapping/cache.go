package mapping

import (
	"context"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Import makes a mapping of a source. Before anything else can fail it adds
// each resource that it acquires to the cleanup; the cache gives them back, in
// the order of their stages, when the mapping is retired, and also if Import
// fails or panics. Import is called on a goroutine of its own, concurrently for
// different mappings. Its context ends when the mapping is not wanted any more
// (withdrawn, replaced, closed), not when those who asked for it leave; it
// should return soon after. The source is its own copy.
//
// The error's code is kept; one without is [sdk.Refused].
type Import[M any] func(ctx context.Context, s Source, c *Cleanup) (M, error)

// Options of a cache. The zero value means the defaults.
type Options struct {
	// MaxMappings bounds the mappings that exist: being imported, live, or not
	// yet given back. Default 1024. Four times as many sources are kept: what
	// was announced first and is not mapped is dropped for a new one, and has to
	// be announced again.
	MaxMappings int
	// Idle is for how long a mapping stays without a lease, up to half as long
	// again. Default 60 s; negative: for ever.
	Idle time.Duration
	// On is told what happens. It is called without a lock, by whoever made it
	// happen, and so must be quick and safe for concurrent use; it must not call
	// Close or Withdraw. Nil: nobody is told, and a hit is cheaper.
	On func(Event)
}

const (
	defaultMappings = 1024
	defaultIdle     = time.Minute
	sourcesPer      = 4 // mapping
	// cleaners bounds how many cleanups talk to the driver at a time.
	cleaners = 8
)

// Cache holds imported mappings of peers' memory, each bound to the
// publication that it was imported for. It is safe for concurrent use.
type Cache[M any] struct {
	importer Import[M]
	max      int
	idle     time.Duration
	on       func(Event)

	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	cleaner chan struct{}

	mu       sync.Mutex
	closed   bool
	places   map[place]*spot[M]
	sources  int
	mappings map[*imported[M]]struct{} // all that are not gone
	tombs    tombstones
	changed  chan struct{} // closed and made anew when a waiter should look again
	events   []Event       // to tell when the lock is released
	number   uint64
	totals   Totals
}

// spot is what a cache knows of a place.
type spot[M any] struct {
	source    *Source // nil: none is announced
	announced uint64
	mapping   *imported[M] // of the source, importing or live; or nil
	old       int          // mappings of the place that are retiring
}

// New makes a cache. Close it.
func New[M any](importer Import[M], o Options) *Cache[M] {
	c := &Cache[M]{
		importer: importer, max: o.MaxMappings, idle: o.Idle, on: o.On,
		cleaner: make(chan struct{}, cleaners),
		places:  map[place]*spot[M]{}, mappings: map[*imported[M]]struct{}{}, changed: make(chan struct{}),
	}
	if c.max <= 0 {
		c.max = defaultMappings
	}
	if c.idle == 0 {
		c.idle = defaultIdle
	}
	c.ctx, c.stop = context.WithCancel(context.Background())
	if c.idle > 0 {
		c.tasks.Go(c.sweep)
	}
	return c
}

// Announce says that the source is current: what the provider's descriptor, as
// read last, has at this place. Leases of it may then be asked for. What was
// current there and is other memory, or may be, is retired at once: another
// capability; without capabilities other handle bytes, or, of a kind whose
// bytes repeat, any newer descriptor. It does not wait for that, and costs
// little when nothing is new.
//
// [sdk.StaleCapability]: the descriptor is older than one that was announced,
// or the publication has been withdrawn or replaced; read the descriptor anew.
// [sdk.InvalidArgument] and [sdk.TooLarge]: no provider may say that; nothing
// is changed.
func (c *Cache[M]) Announce(s Source) error {
	if err := s.check(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.unlock()
	if c.closed {
		return errClosed()
	}
	if c.tombs.forbid(s.Key, s.Version) {
		return sdk.Errorf(sdk.StaleCapability, "mapping %s: it was withdrawn or replaced; version %d of the descriptor comes too late", s.Key, s.Version)
	}
	p := c.places[s.place()]
	if p == nil {
		p = &spot[M]{}
		c.places[s.place()] = p
	}
	if p.source == nil {
		c.roomForSource()
		c.sources++
		c.number++
		p.announced = c.number
	} else {
		v, err := judge(*p.source, s)
		if err != nil || v == same {
			return err
		}
		if v == replace {
			c.retire(p.mapping, Replaced)
			c.bury(*p.source, s)
			c.wake()
		}
	}
	s = s.clone()
	p.source = &s
	return nil
}

// bury keeps late descriptors from bringing back what was replaced.
func (c *Cache[M]) bury(old, by Source) {
	switch {
	case old.Key == by.Key: // the new source's version does
	case old.Capability.IsZero():
		c.tombs.bury(old.Key, by.Version)
	default:
		c.tombs.bury(old.Key, never)
	}
}

// roomForSource drops the oldest source without a mapping if there are too
// many. It can be announced again.
func (c *Cache[M]) roomForSource() {
	if c.sources < sourcesPer*c.max {
		return
	}
	var oldest *spot[M]
	for _, p := range c.places {
		if p.source != nil && p.mapping == nil && (oldest == nil || p.announced < oldest.announced) {
			oldest = p
		}
	}
	if oldest != nil {
		c.drop(oldest, oldest.source.Version)
	}
}

// drop forgets a spot's source. It may come back with a descriptor of at least
// version floor.
func (c *Cache[M]) drop(p *spot[M], floor uint64) {
	c.tombs.bury(p.source.Key, floor)
	at := p.source.place()
	p.source = nil
	c.sources--
	c.tidy(at)
	c.wake()
}

// tidy forgets a place of which nothing is known any more.
func (c *Cache[M]) tidy(at place) {
	if p := c.places[at]; p != nil && p.source == nil && p.mapping == nil && p.old == 0 {
		delete(c.places, at)
	}
}

// Withdraw retires a publication for good and waits until its mapping is
// wholly gone: nothing of this process can touch the memory through the cache
// any more. Nil also means that there was none. Its key is refused from now on;
// without a capability, up to the version of the descriptor that it had.
//
// When ctx ends first the error is [sdk.Busy] and says how many leases are
// held, or what the driver refuses; the retirement goes on.
func (c *Cache[M]) Withdraw(ctx context.Context, k Key) error {
	c.mu.Lock()
	if c.closed {
		c.unlock()
		return errClosed()
	}
	floor, known := uint64(never), !k.Capability.IsZero()
	if p := c.places[k.place()]; p != nil && p.source != nil && p.source.Key == k {
		c.retire(p.mapping, Withdrawn)
		if !known && p.source.Version != never {
			floor = p.source.Version + 1
		}
		c.drop(p, floor)
	} else if known {
		c.tombs.bury(k, floor)
	}
	c.unlock()
	return c.await(ctx, func() error {
		for m := range c.mappings {
			if m.source.Key == k {
				return m.waiting("withdraw")
			}
		}
		return nil
	})
}

// Forget retires one publication of a provider's or, with no capability, all,
// and waits as Withdraw does until their mappings are wholly gone. Unlike what
// Withdraw retires it may be announced again, with a descriptor that is not
// older; what is imported then is not waited for.
func (c *Cache[M]) Forget(ctx context.Context, provider sdk.Incarnation, capability sdk.Capability) error {
	meant := func(k Key) bool {
		return k.Provider == provider && (capability.IsZero() || k.Capability == capability)
	}
	c.mu.Lock()
	if c.closed {
		c.unlock()
		return errClosed()
	}
	for _, p := range c.places {
		if p.source != nil && meant(p.source.Key) {
			c.retire(p.mapping, Withdrawn)
			c.drop(p, p.source.Version)
		}
	}
	last := c.number
	c.unlock()
	return c.await(ctx, func() error {
		for m := range c.mappings {
			if m.number <= last && meant(m.source.Key) {
				return m.waiting("withdraw")
			}
		}
		return nil
	})
}

// Evict retires the mapping of a key, which is in the way of another one, and
// waits as Withdraw does until it is wholly gone. What was announced stays: the
// next Acquire imports it anew, and that is not waited for.
func (c *Cache[M]) Evict(ctx context.Context, k Key) error {
	c.mu.Lock()
	if c.closed {
		c.unlock()
		return errClosed()
	}
	if p := c.places[k.place()]; p != nil && p.mapping != nil && p.mapping.source.Key == k {
		c.retire(p.mapping, Crowded)
	}
	last := c.number
	c.unlock()
	return c.await(ctx, func() error {
		for m := range c.mappings {
			if m.number <= last && m.source.Key == k {
				return m.waiting("evict")
			}
		}
		return nil
	})
}

// RetireProvider retires all that a provider published, since it is dead. It
// waits for nothing. Nothing of it is leased any more, unless it turns out to
// live and is announced again with a descriptor that is not older.
func (c *Cache[M]) RetireProvider(provider sdk.Incarnation) {
	c.mu.Lock()
	defer c.unlock()
	for at, p := range c.places {
		if at.provider == provider && p.source != nil {
			c.retire(p.mapping, ProviderGone)
			c.drop(p, p.source.Version)
		}
	}
}

// Close retires everything and waits until all of it is gone. When ctx ends
// first the error is [sdk.Busy] and says what is left; that goes on, and Close
// can be called again, to wait on. From its first call on everything else
// answers [sdk.Closed].
func (c *Cache[M]) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		c.stop()
		for m := range c.mappings {
			c.retire(m, Closing)
		}
		clear(c.places)
		c.sources, c.tombs = 0, tombstones{}
		c.wake()
	}
	c.unlock()
	err := c.await(ctx, func() error {
		var oldest *imported[M]
		for m := range c.mappings {
			if oldest == nil || m.number < oldest.number {
				oldest = m
			}
		}
		if oldest == nil {
			return nil
		}
		return sdk.Errorf(sdk.Busy, "close: %d mappings are left; %w", len(c.mappings), oldest.waiting("the oldest is"))
	})
	if err == nil {
		c.tasks.Wait()
	}
	return err
}

// await waits until blocked returns nil, and returns what it said last if ctx
// ends first. blocked is called with the lock held.
func (c *Cache[M]) await(ctx context.Context, blocked func() error) error {
	for {
		c.mu.Lock()
		err, changed := blocked(), c.changed
		c.unlock()
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			c.mu.Lock()
			err = blocked() // as it is now: a lease may have been released
			c.unlock()
			return err
		}
	}
}

// wake makes waiters look again. The lock is held.
func (c *Cache[M]) wake() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// tell notes an event, for unlock.
func (c *Cache[M]) tell(e Event) {
	if c.on != nil {
		c.events = append(c.events, e)
	}
}

// unlock releases the lock and tells what happened under it.
func (c *Cache[M]) unlock() {
	events := c.events
	c.events = nil
	c.mu.Unlock()
	for _, e := range events {
		c.on(e)
	}
}

func errClosed() error { return sdk.Errorf(sdk.Closed, "the mapping cache is closed") }
