package rdmatransport

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// repostAfter is when receives are posted again that the device refused while
// nothing else would try.
const repostAfter = 10 * time.Millisecond

// receives are a device's receive buffers: one area with one region, shared by
// all endpoints through the shared receive queue. A buffer is posted, or with
// an endpoint, or free because the device refused it; never two of these.
type receives struct {
	srq  verbs.SRQ
	area *area
	n    int

	left atomic.Int64 // how many are posted

	mu     sync.Mutex
	posted []bool
	free   []uint32
	wrs    []verbs.RecvWR // scratch
	retry  *time.Timer
	closed bool
}

// minReceives is the least that a device works with.
const minReceives = 16

// newReceives makes the buffers, as many as asked for, or as the limits allow.
func newReceives(pd verbs.PD, depth int) (*receives, error) {
	r := &receives{n: depth}
	var err error
	for {
		if r.area, err = newArea(pd, r.n*maxFrame); err == nil {
			break
		}
		if !noMemory(err) || r.n/2 < minReceives {
			return nil, err
		}
		r.n /= 2
	}
	if r.srq, err = pd.CreateSRQ(r.n); err != nil {
		return nil, errors.Join(err, r.area.close())
	}
	r.posted = make([]bool, r.n)
	r.free = make([]uint32, 0, r.n)
	r.wrs = make([]verbs.RecvWR, r.n)
	for i := range r.n {
		r.free = append(r.free, uint32(i))
	}
	r.put(nil)
	return r, nil
}

// take says that a completion has named the buffer, and returns it; ok is
// false if it was not posted.
func (r *receives) take(id uint64) (index uint32, mem []byte, ok bool) {
	i := id &^ recvID
	r.mu.Lock()
	defer r.mu.Unlock()
	if i >= uint64(r.n) || !r.posted[i] {
		return 0, nil, false
	}
	r.posted[i] = false
	r.left.Add(-1)
	at := int(i) * maxFrame
	return uint32(i), r.area.mem[at : at+maxFrame : at+maxFrame], true
}

// put posts buffers that were taken, and those that could not be posted
// before. What the device refuses it has not taken, and is tried again.
func (r *receives) put(taken []uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free = append(r.free, taken...)
	r.postLocked()
}

func (r *receives) postLocked() {
	if len(r.free) == 0 || r.closed {
		return
	}
	key := r.area.mr.LKey()
	wrs := r.wrs[:len(r.free)]
	for k, i := range r.free {
		wrs[k] = verbs.RecvWR{ID: recvID | uint64(i), Addr: r.area.address(int(i) * maxFrame), LKey: key, Length: maxFrame}
		r.posted[i] = true // its completion may come before Post returns
	}
	r.left.Add(int64(len(wrs)))
	n, err := r.srq.Post(wrs)
	r.left.Add(int64(n - len(wrs)))
	for _, i := range r.free[n:] {
		r.posted[i] = false
	}
	r.free = r.free[:copy(r.free, r.free[n:])]
	if err != nil {
		r.retryLocked()
	}
}

// reserve is the part of the buffers that grants leave, as far as they can:
// every endpoint is granted a few, and there may be many.
const reserve = 8

// scarce reports whether that part is being used. What comes for an endpoint
// that is held is dropped then: those that are read need buffers.
func (r *receives) scarce() bool { return r.left.Load() < int64(r.n/reserve) }

// renew makes a new queue and posts all buffers to it: those whose completions
// a device has dropped are neither posted nor with anybody, and nothing tells
// which they are. There must be no endpoint.
func (r *receives) renew(pd verbs.PD) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.srq.Close(); err != nil {
		return err
	}
	srq, err := pd.CreateSRQ(r.n)
	if err != nil {
		return err
	}
	r.srq, r.free = srq, r.free[:0]
	r.left.Store(0)
	for i := range r.n {
		r.free = append(r.free, uint32(i))
	}
	r.postLocked()
	return nil
}

func (r *receives) retryLocked() {
	if r.retry == nil {
		r.retry = time.AfterFunc(repostAfter, func() { r.put(nil) })
	} else {
		r.retry.Reset(repostAfter)
	}
}

func (r *receives) close() error {
	r.mu.Lock()
	r.closed = true
	if r.retry != nil {
		r.retry.Stop()
	}
	r.mu.Unlock()
	if err := r.srq.Close(); err != nil {
		return err // the device still uses the memory
	}
	return r.area.close()
}
