package simverbs

// Accounts are what exists, and what was done wrong. All zero and no faults is
// how a process should end.
type Accounts struct {
	Devices, PDs, Channels, CQs, SRQs, QPs, MRs int
	// Sends and Receives are posted and neither completed nor dropped;
	// Completions were not polled.
	Sends, Receives, Completions int
	// Faults are wrong orders: memory that a device still uses was changed,
	// posted twice or given back, objects were used after they were closed.
	Faults []string
}

// IsClean reports whether nothing exists and nothing was wrong.
func (a Accounts) IsClean() bool {
	return a.Devices+a.PDs+a.Channels+a.CQs+a.SRQs+a.QPs+a.MRs+
		a.Sends+a.Receives+a.Completions+len(a.Faults) == 0
}

// Accounts returns the counts of now and the faults so far.
func (p *Provider) Accounts() Accounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := Accounts{Faults: append([]string(nil), p.faults...)}
	for _, n := range p.nics {
		for d := range n.opened {
			a.Devices++
			a.PDs += len(d.pds)
			a.Channels += len(d.channels)
			a.CQs += len(d.cqs)
			a.SRQs += len(d.srqs)
			a.MRs += len(d.mrs)
			a.QPs += len(d.qps)
			for q := range d.qps {
				a.Sends += len(q.sends)
			}
			for s := range d.srqs {
				a.Receives += len(s.queue)
			}
			for c := range d.cqs {
				a.Completions += len(c.entries)
			}
		}
	}
	return a
}
