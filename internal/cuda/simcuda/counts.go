//go:build linux

package simcuda

import "slices"

// Counts are what a process holds, and what it did wrong. All zero and no
// faults is how a process should end.
type Counts struct {
	Contexts     int // retained
	Handles      int // that have references
	References   int // created, retained, imported, and not released
	Reservations int // of addresses
	Mappings     int // Map
	Allocations  int // Alloc
	IPCOpens     int
	Hosts        int // registered ranges
	Streams      int
	Events       int
	// FDs are exported and imported descriptors that are still open.
	FDs int
	// Faults are wrong orders: memory unmapped while a copy used it, a context
	// used outside Do, a device closed with something left.
	Faults []string
}

// IsClean reports whether nothing is held and nothing was wrong.
func (c Counts) IsClean() bool {
	return c.Contexts+c.Handles+c.References+c.Reservations+c.Mappings+c.Allocations+
		c.IPCOpens+c.Hosts+c.Streams+c.Events+c.FDs+len(c.Faults) == 0
}

// Counts returns the counts of now and the faults so far.
func (d *Driver) Counts() Counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.count(nil)
	c.Faults = slices.Clone(d.faults)
	for fd, name := range d.seen {
		if fileName(fd) == name {
			c.FDs++
		} else {
			delete(d.seen, fd)
		}
	}
	for _, g := range d.gpus {
		c.Contexts += g.opens
	}
	return c
}

// count counts the objects of one device, or of all.
func (d *Driver) count(g *gpu) (c Counts) {
	is := func(of *gpu) bool { return g == nil || g == of }
	for _, r := range d.handles {
		if is(r.gpu) {
			c.Handles++
			c.References += r.count
		}
	}
	for _, s := range d.spans {
		switch {
		case !is(s.gpu):
		case s.kind == reserved:
			c.Reservations++
			c.Mappings += len(s.maps)
		case s.kind == allocated:
			c.Allocations++
		case s.kind == opened:
			c.IPCOpens++
		}
	}
	for _, m := range d.hosts {
		if is(m.gpu) {
			c.Hosts++
		}
	}
	for _, s := range d.streams {
		if is(s.gpu) {
			c.Streams++
		}
	}
	for _, e := range d.events {
		if is(e.gpu) {
			c.Events++
		}
	}
	return c
}
