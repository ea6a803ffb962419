package engine

import "sync/atomic"

// counters count what happens, for status and tests.
type counters struct {
	Sent, Resent, Fallbacks, Acked     atomic.Uint64
	NotPosted, HandedOver, Timeouts    atomic.Uint64
	Backpressure, CreditRequests       atomic.Uint64
	Received, Duplicates, Unstamped    atomic.Uint64
	Malformed, OutOfRange, WrongLife   atomic.Uint64
	UnknownSession, ForeignAcks        atomic.Uint64
	AcksSent, Nonsense, Impostors      atomic.Uint64
	Connects, Accepts, ConnectFailures atomic.Uint64
	TransportsDown                     atomic.Uint64
	Marks, Probes, Pauses              atomic.Uint64
	Sessions                           atomic.Int64

	// Rules of the protocol that fired.
	FastResends, RoomLost, AcksReceived        atomic.Uint64
	CreditAnswers, AcksWithoutRoom, RoomAcks   atomic.Uint64
	Stalls, ReceiptsMissed, Refusals, Reopened atomic.Uint64
	// Calls that a mark kept from being made; what a freeze was.
	FailedFast, Freezes atomic.Uint64
	Frozen              atomic.Int64 // nanoseconds

	moveCounters
	tally
}

// Stats counts what happened since Open.
type Stats struct {
	// Sent is copies of notifications given to transports, Resent those of
	// them that were not the first, and Fallbacks those that went another way
	// than the copy before.
	Sent, Resent, Fallbacks uint64
	// Acked is notifications acknowledged by peers, Taken those that peers'
	// transports have taken, which is all that protocols 0 and 1 tell, Failed
	// those that ended with an error, and Pending those that have not ended.
	Acked, Taken, Failed uint64
	Pending              int
	// NotPosted is copies that never left, HandedOver notifications whose
	// endpoint ended before they were acknowledged, Timeouts those whose ack
	// was overdue.
	NotPosted, HandedOver, Timeouts uint64
	// Backpressure is notifications that were refused for want of room.
	Backpressure uint64
	// Received is notifications queued here; Duplicates is copies of those
	// that were recognised, DroppedFull what found the queue, or the part of
	// it for its name, full.
	Received, Duplicates, DroppedFull uint64
	// Malformed, OutOfRange, WrongLife, UnknownSession, ForeignAcks and
	// Nonsense count what peers and plugins sent that makes no sense: frames
	// that do not parse, numbers beyond the floor's reach, frames for another
	// incarnation, of a session not held, acks that are not for this pair,
	// outcomes of frames that a plugin was never given.
	Malformed, OutOfRange, WrongLife, UnknownSession, ForeignAcks, Nonsense uint64
	// Impostors counts calls and answers of the control plane in the name of
	// an incarnation that bears another certificate.
	Impostors uint64
	// Connects and Accepts count endpoints made, ConnectFailures attempts
	// that failed, TransportsDown instances of transports that went down.
	Connects, Accepts, ConnectFailures, TransportsDown uint64
	// Marks counts peers that fell silent, Probes the prober's calls, and
	// Pauses paths that were paused; Silent is how many peers are marked as
	// silent now.
	Marks, Probes, Pauses uint64
	Silent                int
	// Freezes is how often this process did not run for half a second or more,
	// Voided how many verdicts about others were given up for that.
	Freezes, Voided uint64
	// AcksSent is acknowledgements given to transports, CreditRequests
	// requests for room.
	AcksSent, CreditRequests uint64
	// Sessions is how many senders are remembered now.
	Sessions int
	// Queued is notifications waiting for Receive, and QueuedBytes their
	// bytes; OutboxBytes is what the pending ones take.
	Queued, QueuedBytes, OutboxBytes int
	// Restarts is starts of plugins after their transports' first.
	Restarts uint64
	// Transfers is transfers submitted, PendingTransfers those that have not
	// ended; OpsDone, OpsFailed and OpsUnknown are ops that succeeded, failed,
	// and ended with an outcome that is not known. BytesMoved is what arrived.
	Transfers                                  uint64
	PendingTransfers                           int
	OpsDone, OpsFailed, OpsUnknown, BytesMoved uint64
	// ChunksRepeated is pieces that went out again after a failure, Fences how
	// often an endpoint ended with pieces that had to be fenced.
	ChunksRepeated, Fences uint64
	// Regions is how many are registered, Mappings how many of peers' regions
	// transports know, Unresolved how many ops of unknown outcome still hold
	// their memory.
	Regions, Mappings, Unresolved int
	// Associations is how many peers' lives and addresses something is held
	// of.
	Associations int
}

// Stats returns the counts.
func (e *Engine) Stats() Stats {
	c := &e.stats
	queued, queuedBytes := e.queue.Len()
	memory := e.memory.sizes()
	return Stats{
		Sent: c.Sent.Load(), Resent: c.Resent.Load(), Fallbacks: c.Fallbacks.Load(), Acked: c.Acked.Load(), Taken: c.handedOver.Load(),
		NotPosted: c.NotPosted.Load(), HandedOver: c.HandedOver.Load(), Timeouts: c.Timeouts.Load(),
		Backpressure: c.Backpressure.Load(), Received: c.Received.Load(), Duplicates: c.Duplicates.Load(),
		DroppedFull: c.dropped[dropFull].Load() + c.dropped[dropPart].Load() + c.dropped[dropLost].Load(),
		Malformed:   c.Malformed.Load(), OutOfRange: c.OutOfRange.Load(),
		WrongLife: c.WrongLife.Load(), UnknownSession: c.UnknownSession.Load(), ForeignAcks: c.ForeignAcks.Load(),
		Nonsense: c.Nonsense.Load(), Impostors: c.Impostors.Load(), Connects: c.Connects.Load(), Accepts: c.Accepts.Load(),
		ConnectFailures: c.ConnectFailures.Load(), TransportsDown: c.TransportsDown.Load(),
		Marks: c.Marks.Load(), Probes: c.Probes.Load(), Pauses: c.Pauses.Load(), Silent: e.watch.silent(),
		Freezes: c.Freezes.Load(), Voided: e.freeze.Voided(),
		AcksSent: c.AcksSent.Load(), CreditRequests: c.CreditRequests.Load(), Sessions: int(c.Sessions.Load()), Queued: queued,
		QueuedBytes: queuedBytes, OutboxBytes: int(e.outbox.used.Load()), Failed: c.failures(),
		Pending: int(e.deliveries.n.Load()), Restarts: e.transports.restarts(), Associations: len(e.directory.all()),
		Transfers: c.Transfers.Load(), PendingTransfers: int(e.transfers.n.Load()), OpsDone: c.opEnds[opDone].Load(),
		OpsFailed: c.opEnds[opFailed].Load() + c.opEnds[opNotSent].Load(), OpsUnknown: c.opEnds[opUnknown].Load(),
		BytesMoved: c.moved(), ChunksRepeated: c.chunks[chunkRepeated].Load(), Fences: c.fences[fenceBegun].Load(),
		Regions: memory.regions, Mappings: memory.mappings, Unresolved: memory.unresolved,
	}
}
