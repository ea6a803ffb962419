package mapping

import (
	"cmp"
	"slices"
	"time"
)

// Cause is why a mapping was retired.
type Cause string

// The causes.
const (
	Withdrawn    Cause = "withdrawn"     // by Withdraw
	Replaced     Cause = "replaced"      // a newer source of the place was announced
	ProviderGone Cause = "provider gone" // by RetireProvider
	Idle         Cause = "idle"          // nobody had a lease for Options.Idle
	Crowded      Cause = "crowded"       // it was idle, and another one needed its place
	Failed       Cause = "import failed" // what there is of it is given back
	Closing      Cause = "closing"       // by Close
)

// What happened.
type What string

// The events.
const (
	Imported     What = "imported"      // Took: the import
	ImportFailed What = "import failed" // Err; Took: the import
	Hit          What = "hit"           // a lease of a live mapping
	Evicted      What = "evicted"       // Cause Idle or Crowded; Took: without a lease
	StepRefused  What = "step refused"  // Err: the driver's; once per step, not per try
	Retired      What = "retired"       // Cause; all is given back; Took: since it began
)

// Event is something that happened to a mapping.
type Event struct {
	What  What
	Key   Key
	Kind  string // the kind's name
	Cause Cause
	Err   error
	Took  time.Duration
}

// Stuck is a step that the driver refuses. It is tried again, 100 ms to 30 s
// apart, until the driver gives in; later steps wait for it.
type Stuck struct {
	Step   string // its name; empty: none was refused
	Reason error  // the last refusal
	Since  time.Time
	Tries  int

	step *Step
}

// Info describes a mapping, for people.
type Info struct {
	Key    Key
	Kind   string
	Length uint64
	// State is "importing", "live" or "retiring", since Since.
	State  string
	Since  time.Time
	Leases int
	Cause  Cause // of its retirement
	Stuck  Stuck
}

// Totals only grow.
type Totals struct {
	Imported, Failed, Evicted uint64
	// Retired counts mappings of which nothing is left, failed imports too.
	Retired uint64
}

// Stats are counts of a moment. Mappings are Importing, Live or Retiring;
// Leased and Stuck are some of them.
type Stats struct {
	Sources   int // announced
	Importing int
	Live      int
	Retiring  int
	Leased    int // mappings with leases, or waited for
	Leases    int
	Stuck     int
	Totals    Totals
}

// Mappings lists all that are not gone, in the order of their imports.
func (c *Cache[M]) Mappings() []Info {
	c.mu.Lock()
	defer c.unlock()
	all := make([]*imported[M], 0, len(c.mappings))
	for m := range c.mappings {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b *imported[M]) int { return cmp.Compare(a.number, b.number) })
	list := make([]Info, len(all))
	for i, m := range all {
		list[i] = Info{
			Key: m.source.Key, Kind: m.source.Kind.Name, Length: m.source.Length,
			State: [...]string{importing: "importing", live: "live", retiring: "retiring"}[m.state.Load()],
			Since: m.since, Leases: int(m.held()), Cause: m.cause, Stuck: m.stuck,
		}
	}
	return list
}

// Stats counts.
func (c *Cache[M]) Stats() Stats {
	c.mu.Lock()
	defer c.unlock()
	s := Stats{Sources: c.sources, Totals: c.totals}
	for m := range c.mappings {
		switch m.state.Load() {
		case importing:
			s.Importing++
		case live:
			s.Live++
		default:
			s.Retiring++
		}
		if held := int(m.held()); held > 0 {
			s.Leased++
			s.Leases += held
		}
		if m.stuck.Step != "" {
			s.Stuck++
		}
	}
	return s
}
