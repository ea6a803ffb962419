package health

import (
	"cmp"
	"slices"
	"time"
)

const (
	// MaxMarks bounds the addresses that are remembered. Otherwise whoever
	// makes this engine call addresses where nobody answers (a registry, a
	// host program that walks a list, a peer whose hello names somebody
	// else's address) makes it remember and probe all of them.
	MaxMarks = 4096
	// MaxProbes bounds the probes under way, each of which is a call with a
	// goroutine and perhaps a connection. A rack that is gone fits; a larger
	// crowd takes turns.
	MaxProbes = 256
)

// PeerOptions are [Peers]' settings: engine.PeerHealthConfig, checked and
// filled in, and rpc.probe_timeout_ms.
type PeerOptions struct {
	// Enable false makes every call allowed and no address known.
	Enable bool
	// Cooldown is the first one, MaxCooldown the longest.
	Cooldown, MaxCooldown time.Duration
	// ProbeInterval is the time between the beginnings of two probes of one
	// address, ProbeTimeout how long one may take.
	ProbeInterval, ProbeTimeout time.Duration
	// MaxAge is when an address that nobody wanted is forgotten.
	MaxAge time.Duration
}

// Outcome is what a call to an address says of who is there.
type Outcome uint8

const (
	// NoVerdict: the call was not made, its caller gave up, or this process
	// did not run meanwhile. It says nothing.
	NoVerdict Outcome = iota
	// Answered: an answer came, if only a refusal.
	Answered
	// Silent: none came.
	Silent
	// Gone: the host refused the connection. Nobody has to be spared a
	// timeout: the next call fails as fast.
	Gone
)

// PeerEventKind is what happened to an address.
type PeerEventKind uint8

const (
	// PeerSilent: it was marked.
	PeerSilent PeerEventKind = iota + 1
	// PeerResumed: an answer cleared its mark. What is pending goes out now.
	PeerResumed
	// PeerForgotten: its mark ended without an answer: void, expired,
	// evicted, or the host refuses connections. It may be called again.
	PeerForgotten
)

// PeerEvent is one change of an address. Per address they alternate: silent,
// then resumed or forgotten.
type PeerEvent struct {
	Kind    PeerEventKind
	Address string
	// Until is when the first cooldown ends, for PeerSilent.
	Until time.Time
}

// Peers knows which addresses are silent. It is not safe for concurrent use.
//
// The prober stands in for callers: while it asks, a cooldown that is about to
// run out is renewed by a probe that got no answer, so that a dead peer costs
// one timeout, not one per cooldown.
type Peers struct {
	o       PeerOptions
	clock   clock
	marks   map[string]*mark
	probing map[string]time.Time // when each probe under way began

	maxMarks, maxProbes int
}

// mark is what is known of an address.
type mark struct {
	// strikes counts the cooldowns in a row. At 0 the address is not marked:
	// it was, or it is to be asked.
	strikes int
	until   time.Time // when the cooldown ends
	// changed is when an answer or a silence last told something. The silence
	// of a call that began before tells nothing new.
	changed time.Time
	touched time.Time // when somebody last wanted the address
	probeAt time.Time
	asked   bool // by Ask
}

// NewPeers returns a Peers that knows of no address.
func NewPeers(o PeerOptions) *Peers {
	return &Peers{
		o: o, marks: map[string]*mark{}, probing: map[string]time.Time{},
		maxMarks: MaxMarks, maxProbes: MaxProbes,
	}
}

// Idle reports whether no address is known.
func (p *Peers) Idle() bool { return len(p.marks) == 0 }

// Allow reports whether the address may be called now; if not, the call is to
// fail at once, and until is when its cooldown ends unless it is renewed. That
// somebody wants to call it keeps a mark from expiring.
func (p *Peers) Allow(address string, now time.Time) (ok bool, until time.Time) {
	if len(p.marks) == 0 {
		return true, time.Time{}
	}
	now = p.clock.at(now)
	m := p.known(address, now)
	if m == nil || m.strikes == 0 {
		return true, time.Time{}
	}
	m.touched = now
	if now.Before(m.until) {
		return false, m.until
	}
	return true, time.Time{}
}

// Marked reports whether the address is marked, in a cooldown or after one. It
// touches nothing.
func (p *Peers) Marked(address string, now time.Time) bool {
	n, _ := p.Cooldown(address, now)
	return n > 0
}

// Cooldown is which cooldown in a row an address's mark is in, and when it ends;
// 0 if it is not marked. It touches nothing.
func (p *Peers) Cooldown(address string, now time.Time) (n int, until time.Time) {
	m := p.known(address, p.clock.at(now))
	if m == nil || m.strikes == 0 {
		return 0, time.Time{}
	}
	return m.strikes, m.until
}

// Silent is how many addresses are marked.
func (p *Peers) Silent(now time.Time) (n int) {
	now = p.clock.at(now)
	for _, m := range p.marks {
		if m.strikes > 0 && !p.expired(m, now) {
			n++
		}
	}
	return n
}

// Answers reports whether the address is known to have answered after since.
// It knows so of addresses that were marked or asked for (see Ask) only.
func (p *Peers) Answers(address string, since time.Time) bool {
	m := p.marks[address]
	return m != nil && m.strikes == 0 && m.changed.After(since)
}

// Ask has the prober ask an address that is not marked, at once but not more
// often than marked ones: for [Facts.PeerAnswers]. It is not an error to ask
// again and again. At the bound, marks come first.
func (p *Peers) Ask(address string, now time.Time) []PeerEvent {
	if !p.o.Enable {
		return nil
	}
	now = p.clock.at(now)
	m, events := p.hold(address, now, false)
	if m != nil {
		m.touched, m.asked = now, true
	}
	return events
}

// Called takes in what became of a call that began at some time.
func (p *Peers) Called(address string, began, now time.Time, o Outcome) []PeerEvent {
	if !p.o.Enable {
		return nil
	}
	now = p.clock.at(now)
	switch o {
	case Answered:
		return p.answered(address, now)
	case Gone:
		return p.forget(address)
	case Silent:
		if p.clock.void(began) {
			return nil
		}
		m, events := p.hold(address, now, true)
		m.touched = now
		// Calls that waited together fail together, and say one thing.
		if !began.After(m.changed) {
			return events
		}
		return p.strike(address, m, now, events)
	default:
		return nil
	}
}

// Probed takes in what became of the probe of an address that Due returned. It
// is owed for each of them, with NoVerdict if the probe was given up.
func (p *Peers) Probed(address string, now time.Time, o Outcome) []PeerEvent {
	began, ok := p.probing[address]
	if !ok {
		return nil
	}
	delete(p.probing, address)
	now = p.clock.at(now)
	switch o {
	case Answered:
		return p.answered(address, now)
	case Gone:
		return p.forget(address)
	case Silent:
		m := p.known(address, now)
		if m == nil || p.clock.void(began) || !began.After(m.changed) {
			return nil
		}
		// A cooldown that outlasts the next probe, even one that is a little
		// late, needs no renewal; renewing it each second would make the
		// longest one of all marks within seconds.
		if m.strikes > 0 && m.until.After(now.Add(2*p.o.ProbeInterval+p.o.ProbeTimeout)) {
			return nil
		}
		return p.strike(address, m, now, nil)
	default:
		return nil
	}
}

// Due returns the addresses to ask now, longest overdue first. A probe is
// under way for each of them until Probed is told, and meanwhile none of them
// is returned again. It also forgets marks that expired.
func (p *Peers) Due(now time.Time) ([]string, []PeerEvent) {
	now = p.clock.at(now)
	var events []PeerEvent
	var due []string
	for address, m := range p.marks {
		switch {
		case p.expired(m, now):
			events = append(events, p.forget(address)...)
		case p.wants(address, m) && !m.probeAt.After(now):
			due = append(due, address)
		}
	}
	slices.SortFunc(events, func(a, b PeerEvent) int { return cmp.Compare(a.Address, b.Address) })
	slices.SortFunc(due, func(a, b string) int {
		return cmp.Or(p.marks[a].probeAt.Compare(p.marks[b].probeAt), cmp.Compare(a, b))
	})
	due = due[:min(len(due), p.maxProbes-len(p.probing))]
	for _, address := range due {
		m := p.marks[address]
		m.asked, m.probeAt = false, now.Add(p.o.ProbeInterval)
		p.probing[address] = now
	}
	return due, events
}

// Next is when Due has something to do, never before now; zero if never. While
// a probe is under way its end may be what comes next: ask again after Probed.
func (p *Peers) Next(now time.Time) time.Time {
	now = p.clock.at(now)
	var next time.Time
	for address, m := range p.marks {
		next = earlier(next, notBefore(m.touched.Add(p.o.MaxAge), now))
		if p.wants(address, m) && len(p.probing) < p.maxProbes {
			next = earlier(next, notBefore(m.probeAt, now))
		}
	}
	return next
}

// Rearm says that this process did not run for a part of the time since then.
// What that interval decided is void: a silence that was noticed in it is
// taken back, one that will be noticed of a call that began before now counts
// for nothing, and neither cooldowns nor ages ran.
func (p *Peers) Rearm(since, now time.Time) []PeerEvent {
	now = p.clock.at(now)
	if !since.Before(now) {
		return nil
	}
	p.clock.thawed = now
	lost := now.Sub(since)
	var events []PeerEvent
	for address, m := range p.marks {
		switch void := !m.changed.Before(since); {
		case void && m.strikes == 1:
			events = append(events, p.forget(address)...)
			continue
		case void && m.strikes > 1:
			m.strikes--
			m.until = now.Add(p.cooldown(m.strikes))
		case m.until.After(since):
			m.until = m.until.Add(lost)
		}
		if m.touched = m.touched.Add(lost); m.touched.After(now) {
			m.touched = now
		}
	}
	slices.SortFunc(events, func(a, b PeerEvent) int { return cmp.Compare(a.Address, b.Address) })
	return events
}

// known returns what is known of an address, unless that has expired.
func (p *Peers) known(address string, now time.Time) *mark {
	if m := p.marks[address]; m != nil && !p.expired(m, now) {
		return m
	}
	return nil
}

func (p *Peers) expired(m *mark, now time.Time) bool { return now.Sub(m.touched) >= p.o.MaxAge }

// wants reports whether the prober is to ask the address, now or later.
func (p *Peers) wants(address string, m *mark) bool {
	_, underWay := p.probing[address]
	return !underWay && (m.strikes > 0 || m.asked)
}

func (p *Peers) cooldown(strikes int) time.Duration {
	return doubled(p.o.Cooldown, p.o.MaxCooldown, strikes)
}

// answered clears a mark. The address stays known for a while: calls that
// began before the answer may still fail.
func (p *Peers) answered(address string, now time.Time) []PeerEvent {
	m := p.marks[address]
	if m == nil {
		return nil
	}
	was := m.strikes
	m.strikes, m.changed = 0, now
	if was == 0 {
		return nil
	}
	m.touched = now
	return []PeerEvent{{Kind: PeerResumed, Address: address}}
}

func (p *Peers) strike(address string, m *mark, now time.Time, events []PeerEvent) []PeerEvent {
	m.strikes++
	m.changed, m.until = now, now.Add(p.cooldown(m.strikes))
	if m.strikes == 1 {
		m.touched, m.probeAt = now, now.Add(p.o.ProbeInterval)
		events = append(events, PeerEvent{PeerSilent, address, m.until})
	}
	return events
}

func (p *Peers) forget(address string) []PeerEvent {
	m := p.marks[address]
	delete(p.marks, address)
	if m == nil || m.strikes == 0 {
		return nil
	}
	return []PeerEvent{{Kind: PeerForgotten, Address: address}}
}

// hold returns what is known of an address, and remembers one that is new. At
// the bound somebody goes: an expired address, else one without a mark, else
// the one that nobody has wanted for longest. For an address that is not to be
// marked no live mark goes; then it returns nil.
func (p *Peers) hold(address string, now time.Time, marking bool) (*mark, []PeerEvent) {
	if m := p.known(address, now); m != nil {
		return m, nil
	}
	events := p.forget(address) // it has expired
	if len(p.marks) >= p.maxMarks {
		victim := p.victim(now)
		if v := p.marks[victim]; !marking && v.strikes > 0 && !p.expired(v, now) {
			return nil, events
		}
		events = append(events, p.forget(victim)...)
	}
	m := &mark{touched: now, probeAt: now}
	p.marks[address] = m
	return m, events
}

func (p *Peers) victim(now time.Time) string {
	var victim string
	var worst *mark
	for address, m := range p.marks {
		if worst == nil || cmp.Or(
			-compareBool(p.expired(m, now), p.expired(worst, now)),
			compareBool(m.strikes > 0, worst.strikes > 0),
			m.touched.Compare(worst.touched),
			cmp.Compare(address, victim),
		) < 0 {
			victim, worst = address, m
		}
	}
	return victim
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
