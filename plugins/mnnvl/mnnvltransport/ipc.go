//go:build linux

package mnnvltransport

import (
	"context"
	"fmt"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// allocation says whose memory an IPC handle leads to, which its bytes alone do
// not: the next allocation at that address may have the same. An id is given out
// for as long as regions of one allocation are registered without a gap, and
// their provider frees it only after that: of two publications with one id both
// mean what is there now. Without an id it equals no other.
type allocation struct {
	provider sdk.Incarnation
	id       allocationID
	size     uint64
}

// allocationID is drawn by the provider's plugin. Zero is none, as older ones
// publish.
type allocationID [16]byte

// handles are the IPC handles that this process has open: the driver opens each
// once, so the regions of an allocation share it, on one device at a time.
type handles struct {
	// self is the provider of the application's own regions in the caches,
	// incarnation their name elsewhere.
	self, incarnation sdk.Incarnation

	mu   sync.Mutex
	open map[[sdk.HandleBytes]byte]*handle
}

// handle is one of them.
type handle struct {
	refs int // imports under way and users; under the lock of handles
	// turn is full while an import is about to use it: one at a time, so that
	// nobody joins whom it waits for.
	turn chan struct{}

	// mu is held while the driver closes the handle, so that nobody joins then.
	mu     sync.Mutex
	m      *cuda.Mapping // nil: it is not open
	of     allocation
	device *device
	users  map[mapping.Key]struct{} // in the device's cache
}

func (hs *handles) init(self sdk.Incarnation) {
	hs.self, hs.open = self, map[[sdk.HandleBytes]byte]*handle{}
}

// share maps the allocation of a region on a device, or shares the mapping that
// is there. What is in the way goes first: another device's mapping, and that of
// another allocation, or perhaps another.
func (hs *handles) share(ctx context.Context, d *device, k mapping.Key, s cuda.Shared, id allocationID, c *mapping.Cleanup) (cuda.Ptr, error) {
	h := hs.get(s.Bytes)
	defer hs.put(s.Bytes)
	select {
	case h.turn <- struct{}{}:
		defer func() { <-h.turn }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	of := allocation{k.Provider, id, s.Size}
	if of.provider == hs.self {
		of.provider = hs.incarnation
	}
	if err := hs.clear(ctx, h, d, of); err != nil {
		return 0, err
	}
	m, err := h.join(d, k, s, of)
	if m == nil {
		return 0, err
	}
	hs.get(s.Bytes)
	c.Add(mapping.CloseMapping, fmt.Sprintf("close the IPC mapping at %#x", uint64(m.Base)), func() error {
		err := h.leave(k)
		if err == nil {
			hs.put(s.Bytes)
		}
		return err
	})
	return m.Base, err
}

func (hs *handles) get(bytes [sdk.HandleBytes]byte) *handle {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h := hs.open[bytes]
	if h == nil {
		h = &handle{turn: make(chan struct{}, 1), users: map[mapping.Key]struct{}{}}
		hs.open[bytes] = h
	}
	h.refs++
	return h
}

func (hs *handles) put(bytes [sdk.HandleBytes]byte) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.open[bytes]; h.refs == 1 {
		delete(hs.open, bytes)
	} else {
		h.refs--
	}
}

// clear waits until a region of the allocation can have the handle on the device.
// The caller has the turn.
func (hs *handles) clear(ctx context.Context, h *handle, d *device, of allocation) error {
	device, users := h.inTheWay(d, of)
	for _, k := range users {
		if k.Provider == hs.self {
			// An op that waits for us may hold it, while it waits for another.
			return sdk.Errorf(sdk.Busy, "mnnvl: the application's memory is mapped by GPU %d, as its own", device.info.Ordinal)
		}
	}
	for _, k := range users {
		if err := device.cache.Evict(ctx, k); err != nil {
			return err
		}
	}
	return nil
}

func (h *handle) inTheWay(d *device, of allocation) (at *device, users []mapping.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.fits(d, of) {
		return nil, nil
	}
	for k := range h.users {
		users = append(users, k)
	}
	return h.device, users
}

// fits says whether a region of the allocation can use it on the device, as it is.
func (h *handle) fits(d *device, of allocation) bool {
	return h.m == nil || h.device == d && h.of == of && of.id != (allocationID{})
}

// join makes a region a user of the handle, which it opens if nobody else is
// one. A mapping beside an error is what could not be closed: the region keeps
// it, and no other joins. The caller has the turn.
func (h *handle) join(d *device, k mapping.Key, s cuda.Shared, of allocation) (*cuda.Mapping, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.fits(d, of) {
		return nil, sdk.Errorf(sdk.Busy, "mnnvl: the IPC handle of %s is open as another's", k)
	}
	var err error
	if h.m == nil {
		err = d.imports.Do(func(c cuda.Context) (err error) {
			h.m, err = cuda.Import(c, s, true)
			return err
		})
		if h.device, h.of = d, of; err != nil {
			h.of = allocation{}
		}
	}
	if h.m != nil {
		h.users[k] = struct{}{}
	}
	return h.m, err
}

// leave ends a region's use, the last one that of the handle. After an error it
// is called again: somebody may have joined meanwhile.
func (h *handle) leave(k mapping.Key) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.users) == 1 {
		if err := h.device.unmap(h.m); err != nil {
			return err
		}
		h.m = nil
	}
	delete(h.users, k)
	return nil
}
