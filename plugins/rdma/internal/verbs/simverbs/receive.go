package simverbs

import (
	"syscall"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// srq is a shared receive queue.
type srq struct {
	pd       *pd
	cap      int
	used     int // posted, or taken by a completion that was not polled
	queue    []*receive
	users    int
	isClosed bool
}

// receive is a posted receive until its completion was polled or dropped.
type receive struct {
	wr verbs.RecvWR
	q  *srq
	m  *mr // nil if the key or the range is wrong, which its use will show
}

func (p *pd) CreateSRQ(wrs int) (verbs.SRQ, error) {
	const call = "ibv_create_srq"
	d := p.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := p.begin(call); err != nil {
		return nil, err
	}
	if wrs < 1 || wrs > d.n.config.Limits.SRQWRs {
		return nil, refuse(call, d.n.name, syscall.EINVAL)
	}
	if len(d.srqs) >= d.n.config.Limits.SRQs {
		return nil, refuse(call, d.n.name, syscall.ENOMEM)
	}
	s := &srq{pd: p, cap: wrs}
	d.srqs[s] = true
	p.users++
	return s, nil
}

func (s *srq) Post(wrs []verbs.RecvWR) (int, error) {
	const call = "ibv_post_srq_recv"
	d := s.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin(call); err != nil {
		return 0, err
	}
	if s.isClosed {
		d.p.fault("%s after the queue was closed", call)
		return 0, refuse(call, d.n.name, syscall.EINVAL)
	}
	for i, wr := range wrs {
		if err := d.p.inject(call+"(WR)", d.n.name); err != nil {
			return i, err
		}
		if s.used == s.cap {
			return i, refuse(call, d.n.name, syscall.ENOMEM)
		}
		s.used++
		r := &receive{wr: wr, q: s}
		if r.m, _ = s.pd.region(wr.LKey, wr.Addr, wr.Length); r.m != nil {
			for other := range r.m.receives {
				if wr.Addr < other.wr.Addr+uint64(other.wr.Length) && other.wr.Addr < wr.Addr+uint64(wr.Length) {
					d.p.fault("receive %d was posted into the memory of receive %d", wr.ID, other.wr.ID)
				}
			}
			r.m.receives[r] = true
		}
		s.queue = append(s.queue, r)
	}
	return len(wrs), nil
}

// take takes the next receive, nil if there is none.
func (s *srq) take() *receive {
	if s == nil || len(s.queue) == 0 || s.pd.d.n.starved {
		return nil
	}
	r := s.queue[0]
	s.queue = s.queue[1:]
	return r
}

// release ends a receive: its memory is the user's again.
func (r *receive) release() {
	if r == nil {
		return
	}
	r.q.used--
	if r.m != nil {
		delete(r.m.receives, r)
	}
}

func (s *srq) Close() error {
	d := s.pd.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.closing("ibv_destroy_srq", &s.isClosed, s.users, func() {
		for _, r := range s.queue {
			r.release()
		}
		delete(d.srqs, s)
		s.pd.users--
	})
}
