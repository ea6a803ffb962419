package engine

import "sync/atomic"

// moveCounters count what has to do with memory.
type moveCounters struct {
	Transfers                  atomic.Uint64
	RegionsClosed, MappingIdle atomic.Uint64

	opEnds      [len(opEndNames)]atomic.Uint64
	registers   [len(registerNames)]atomic.Uint64
	chunks      [len(chunkNames)]atomic.Uint64
	fences      [len(fenceNames)]atomic.Uint64
	moves       [len(moveNames)]atomic.Uint64
	descriptors [len(descriptorNames)]atomic.Uint64
}

// Closed sets of labels. Each begins with what its first constant counts.
const (
	opDone = iota
	opFailed
	opNotSent
	opUnknown // its outcome
)

const (
	chunkPosted = iota
	chunkNotPosted
	chunkUnknown  // it may have been posted
	chunkRepeated // it failed, and goes out again
)

const (
	fenceBegun    = iota // an endpoint ended with chunks
	fenceWaited          // for a plugin's process to be gone
	fenceThere           // the peer's engine has confirmed
	fenceNotThere        // it has not, that time
	fenceAnswered        // a peer's, by this engine
	fenceRefused         // likewise, since it was not confirmed in time
)

const (
	moveConnected = iota
	moveAccepted
	moveStalled // without an outcome for too long
)

const (
	descServed     = iota // to a peer
	descUnchanged         // likewise, it had the latest
	descFetched           // from a peer
	descNotFetched        // likewise, it failed
	descTold              // peers of a change
	descNotTold
)

var (
	opEndNames      = [...]string{"done", "failed", "not_sent", "outcome_unknown"}
	registerNames   = [...]string{"refused", "registered"}
	chunkNames      = [...]string{"posted", "not_posted", "unknown", "repeated"}
	fenceNames      = [...]string{"begun", "waited", "confirmed", "not_confirmed", "answered", "not_answered"}
	moveNames       = [...]string{"connected", "accepted", "stalled"}
	descriptorNames = [...]string{"served", "unchanged", "fetched", "not_fetched", "told", "not_told"}
)

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *moveCounters) opEnded(err *OpError) {
	end := opDone
	switch {
	case err == nil:
	case err.Code == OutcomeUnknown:
		end = opUnknown
	case err.Code == NotSent:
		end = opNotSent
	default:
		end = opFailed
	}
	c.opEnds[end].Add(1)
}

// memoryMetrics are the metrics of it.
var memoryMetrics = []metric{
	total("hawser_transfers_total", "Transfers submitted.",
		func(c *counters) *atomic.Uint64 { return &c.Transfers }),
	single("hawser_transfers_pending", "Transfers that have not ended.",
		func(s *snapshot) float64 { return float64(s.e.transfers.n.Load()) }),
	closed("hawser_transfer_ops_total", "Ops of transfers that have ended, by how.", "end", opEndNames[:],
		func(c *counters) []atomic.Uint64 { return c.opEnds[:] }),
	perWireOrLocal("hawser_transfer_bytes_total", "Bytes that have arrived, repeated ones included; transport is local for copies within the engine.",
		func(c *transportCounters) uint64 { return c.moved.Load() }),
	closed("hawser_transfer_chunks_total", "Pieces of ops: posted to a transport, given back by it untouched, perhaps posted, and sent again.",
		"event", chunkNames[:], func(c *counters) []atomic.Uint64 { return c.chunks[:] }),
	single("hawser_transfer_ops_unresolved", "Ops that ended with an unknown outcome, and whose memory is in use until that is known.",
		func(s *snapshot) float64 { return float64(s.stats.Unresolved) }),
	closed("hawser_fences_total",
		"Fences: begun, had to wait for a plugin to be gone, confirmed or not by the peer's engine, answered or not to a peer.",
		"event", fenceNames[:], func(c *counters) []atomic.Uint64 { return c.fences[:] }),
	closed("hawser_memory_endpoints_total", "Endpoints for memory that were made from this side, from peers' sides, and that stalled.",
		"event", moveNames[:], func(c *counters) []atomic.Uint64 { return c.moves[:] }),
	single("hawser_regions", "Regions that are registered, or not given up yet.",
		func(s *snapshot) float64 { return float64(s.stats.Regions) }),
	closed("hawser_region_registrations_total", "Registrations of a region with an instance of a transport.", "result", registerNames[:],
		func(c *counters) []atomic.Uint64 { return c.registers[:] }),
	total("hawser_regions_closed_total", "Regions that nothing can touch any more.",
		func(c *counters) *atomic.Uint64 { return &c.RegionsClosed }),
	closed("hawser_descriptors_total", "Descriptors of memory: served to peers, fetched from peers, and peers told of a change.",
		"event", descriptorNames[:], func(c *counters) []atomic.Uint64 { return c.descriptors[:] }),
	single("hawser_mappings", "Peers' regions that transports here know, and may map.",
		func(s *snapshot) float64 { return float64(s.stats.Mappings) }),
	total("hawser_mappings_idle_total", "Those that were given up since nothing used them.",
		func(c *counters) *atomic.Uint64 { return &c.MappingIdle }),
}

// memorySizes are what is held of memory now.
type memorySizes struct{ regions, mappings, unresolved int }

func (m *memory) sizes() (z memorySizes) {
	m.mu.Lock()
	z.regions = len(m.regions)
	sources := m.sourcesLocked()
	for s := range m.fading {
		sources = append(sources, s)
	}
	m.mu.Unlock()
	for _, s := range sources {
		s.mu.Lock()
		z.mappings += len(s.told)
		s.mu.Unlock()
		z.unresolved += s.mover.unresolved()
	}
	return z
}

// unresolved is how many ops were reported and are not over.
func (m *mover) unresolved() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.reported
}
