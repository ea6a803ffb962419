package mapping

import "time"

// The pause after a refused step doubles from the first to the last.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// retire is the one way out, for whatever cause: nothing leases the mapping
// any more, and once nothing does, what it acquired is given back. Of several
// calls the first counts. The lock is held.
func (c *Cache[M]) retire(m *imported[M], why Cause) {
	if m == nil || m.state.Load() == retiring {
		return
	}
	was := m.state.Load()
	// Before anything is counted: a hit counts itself and then looks here.
	m.state.Store(retiring)
	if was == importing {
		m.cancel()
		close(m.ready)
	}
	now := time.Now()
	m.cause, m.since = why, now
	if why == Idle || why == Crowded {
		c.totals.Evicted++
		c.tell(Event{What: Evicted, Key: m.source.Key, Kind: m.source.Kind.Name, Cause: why, Took: now.Sub(m.used)})
	}
	if p := c.places[m.source.place()]; p != nil && p.mapping == m {
		p.mapping = nil
		p.old++
	}
	c.clean(m)
}

// drained is called when a lease of a retiring mapping was released.
func (c *Cache[M]) drained(m *imported[M]) {
	c.mu.Lock()
	defer c.unlock()
	c.clean(m)
}

// clean begins to give back what the mapping acquired if it is time to. The
// lock is held.
func (c *Cache[M]) clean(m *imported[M]) {
	if m.drainable() {
		m.cleaning = true
		c.tasks.Go(func() { c.giveBack(m) })
	}
}

// giveBack runs the mapping's cleanup until nothing is left of it.
func (c *Cache[M]) giveBack(m *imported[M]) {
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		c.cleaner <- struct{}{}
		step, err := m.cleanup.run()
		<-c.cleaner
		if step == nil {
			break
		}
		if c.refused(m, step, err) {
			pause = firstRetry
		}
		time.Sleep(pause)
	}
	c.mu.Lock()
	defer c.unlock()
	delete(c.mappings, m)
	if p := c.places[m.source.place()]; p != nil {
		p.old--
		c.tidy(m.source.place())
	}
	c.totals.Retired++
	c.tell(Event{What: Retired, Key: m.source.Key, Kind: m.source.Kind.Name, Cause: m.cause, Took: time.Since(m.since)})
	c.wake()
}

// refused notes that the driver refused a step, and reports whether it is
// another one than the last time.
func (c *Cache[M]) refused(m *imported[M], step *Step, err error) bool {
	c.mu.Lock()
	defer c.unlock()
	other := m.stuck.step != step
	if other {
		m.stuck = Stuck{Step: step.name, Since: time.Now(), step: step}
		c.tell(Event{What: StepRefused, Key: m.source.Key, Kind: m.source.Kind.Name, Cause: m.cause, Err: err})
		c.wake() // who would wait for it must not
	}
	m.stuck.Reason = err
	m.stuck.Tries++
	return other
}

// sweep retires mappings that are idle, until the cache is closed.
func (c *Cache[M]) sweep() {
	every := time.NewTicker(max(c.idle/4, time.Millisecond))
	defer every.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case now := <-every.C:
			c.evictIdle(now)
		}
	}
}

func (c *Cache[M]) evictIdle(now time.Time) {
	c.mu.Lock()
	defer c.unlock()
	for m := range c.mappings {
		if m.look(now) == 0 && m.state.Load() == live && now.Sub(m.used) >= c.idle {
			c.retire(m, Idle)
		}
	}
}
