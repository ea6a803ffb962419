package engine

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/hawser-transport/hawser/engine/internal/inbox"
	"github.com/hawser-transport/hawser/engine/internal/pluginhost"
	"github.com/hawser-transport/hawser/engine/internal/seam"
	"github.com/hawser-transport/hawser/sdk"
)

// WithMetrics registers the engine's metrics with r until the engine is
// closed; [MetricInfos] lists them. Their labels have closed sets of values:
// transports, reasons, states; never a peer's name. Nothing is done for them
// but when they are collected. For several engines of one process wrap the
// registerer for each, with prometheus.WrapRegistererWith and a label that
// differs.
func WithMetrics(r prometheus.Registerer) Option { return func(o *seam.Options) { o.Metrics = r } }

// WithPeerMetrics adds metrics of each peer, by its address, of the first
// limit peers that are met; the others are added up as "other". It needs
// [WithMetrics].
func WithPeerMetrics(limit int) Option { return func(o *seam.Options) { o.PeerMetrics = limit } }

// MetricInfo describes a metric.
type MetricInfo struct {
	// Name is the metric's, Type counter, gauge or histogram.
	Name, Type, Help string
	// Labels are the labels' names.
	Labels []string
	// PerPeer: it is there with WithPeerMetrics only.
	PerPeer bool
}

// MetricInfos lists all metrics that an engine has.
func MetricInfos() []MetricInfo {
	var list []MetricInfo
	for _, m := range metricTable {
		info := MetricInfo{Name: m.name, Type: "gauge", Help: m.help, Labels: m.labels, PerPeer: m.perPeer}
		switch {
		case m.name == latencyName:
			info.Type = "histogram"
		case strings.HasSuffix(m.name, "_total"):
			info.Type = "counter"
		}
		list = append(list, info)
	}
	return list
}

// metric is one metric: what it is called and how it is read.
type metric struct {
	name, help string
	labels     []string
	perPeer    bool
	values     []string // of its last label, each of which something moves
	read       func(s *snapshot, emit emit)
}

// emit gives one sample, with the labels' values.
type emit func(v float64, labels ...string)

// snapshot is what one collection reads from.
type snapshot struct {
	e          *Engine
	stats      Stats
	transports []TransportStatus
	counters   []*transportCounters
	peers      []PeerStatus
	label      func(address string) string // of a peer
}

const latencyName = "hawser_ack_latency_seconds"

// single makes a metric without labels.
func single(name, help string, f func(s *snapshot) float64) metric {
	return metric{name: name, help: help, read: func(s *snapshot, emit emit) { emit(f(s)) }}
}

// perWire makes a counter by transport, as peers call it.
func perWire(name, help string, f func(c *transportCounters) uint64) metric {
	return metric{name: name, help: help, labels: []string{"transport"}, read: func(s *snapshot, emit emit) {
		for _, c := range s.counters {
			emit(float64(f(c)), c.name)
		}
	}}
}

// perWireOrLocal is perWire with what the engine does to itself.
func perWireOrLocal(name, help string, f func(c *transportCounters) uint64) metric {
	m := perWire(name, help, f)
	remote := m.read
	m.read = func(s *snapshot, emit emit) {
		remote(s, emit)
		emit(float64(f(&s.e.stats.local)), localTransport)
	}
	return m
}

// perTransport makes a metric by configured transport.
func perTransport(name, help string, f func(t TransportStatus) float64) metric {
	return metric{name: name, help: help, labels: []string{"transport"}, read: func(s *snapshot, emit emit) {
		for _, t := range s.transports {
			emit(f(t), t.Name)
		}
	}}
}

// perPeer makes a gauge by peer's address.
func perPeer(name, help string, f func(p PeerStatus) float64) metric {
	return metric{name: name, help: help, labels: []string{"peer"}, perPeer: true, read: func(s *snapshot, emit emit) {
		sums := map[string]float64{}
		for _, p := range s.peers {
			sums[s.label(p.Address)] += f(p)
		}
		for peer, v := range sums {
			emit(v, peer)
		}
	}}
}

func count(s *snapshot, f func(p PeerStatus) bool) float64 {
	n := 0
	for _, p := range s.peers {
		if f(p) {
			n++
		}
	}
	return float64(n)
}

// transportStates are all states of a transport.
var transportStates = []string{
	string(pluginhost.Starting), string(pluginhost.Up), string(pluginhost.Restarting),
	string(pluginhost.Quarantined), string(pluginhost.Unsupported), string(pluginhost.Stopped), "absent",
}

// closed makes a counter of the engine by a label with a closed set of values.
func closed(name, help, label string, values []string, f func(c *counters) []atomic.Uint64) metric {
	return metric{name: name, help: help, labels: []string{label}, values: values, read: func(s *snapshot, emit emit) {
		for i, c := 0, f(&s.e.stats); i < len(c); i++ {
			emit(float64(c[i].Load()), values[i])
		}
	}}
}

// total makes a counter of the engine.
func total(name, help string, f func(c *counters) *atomic.Uint64) metric {
	return single(name, help, func(s *snapshot) float64 { return float64(f(&s.e.stats).Load()) })
}

// perQueue makes a gauge by the receive queue's parts: the prefix of each, empty
// for the default queue.
func perQueue(name, help string, f func(p *inbox.Part[Received]) int) metric {
	return metric{name: name, help: help, labels: []string{"queue"}, read: func(s *snapshot, emit emit) {
		sums := map[string]int{"": f(s.e.queue.Rest())}
		for _, q := range s.e.queues {
			sums[strings.ToValidUTF8(q.prefix, "?")] += f(q.part)
		}
		for queue, n := range sums {
			emit(float64(n), queue)
		}
	}}
}

var metricTable = slices.Concat(notificationMetrics, memoryMetrics)

var notificationMetrics = []metric{
	perWire("hawser_notifications_sent_total", "Copies of notifications given to a transport.",
		func(c *transportCounters) uint64 { return c.sent.Load() }),
	perWire("hawser_notifications_resent_total", "Those of them that were not the first.",
		func(c *transportCounters) uint64 { return c.resent.Load() }),
	single("hawser_notifications_acked_total", "Notifications acknowledged by their receivers.",
		func(s *snapshot) float64 { return float64(s.stats.Acked) }),
	single("hawser_notifications_handed_over_total", "Notifications that a transport took for a peer that tells no more.",
		func(s *snapshot) float64 { return float64(s.stats.Taken) }),
	{name: "hawser_notifications_failed_total", labels: []string{"end", "reason"},
		help: "Notifications that failed: not_sent or delivery_unknown, and why.", read: readFailed},
	{name: "hawser_notifications_refused_total", labels: []string{"reason"},
		help: "Notifications that Notify refused: backpressure or too_large.",
		read: func(s *snapshot, emit emit) {
			emit(float64(s.stats.Backpressure), reasonLabel(sdk.Backpressure))
			emit(float64(s.e.stats.tooLarge.Load()), reasonLabel(sdk.TooLarge))
		}},
	single("hawser_notifications_pending", "Notifications that have not ended.",
		func(s *snapshot) float64 { return float64(s.stats.Pending) }),
	{name: latencyName, help: "Time from Notify to the acknowledgement."},
	{name: "hawser_fallbacks_total", labels: []string{"from", "to"},
		help: "Copies that went another way than the copy before, by transport; to another path of the same one, too.",
		read: func(s *snapshot, emit emit) {
			for _, f := range s.e.stats.fallbacks() {
				emit(float64(f.n), f.from, f.to)
			}
		}},
	perWire("hawser_handovers_total", "Notifications whose endpoint ended before they were acknowledged.",
		func(c *transportCounters) uint64 { return c.handedOver.Load() }),
	perWire("hawser_not_posted_total", "Copies that a transport gave back: they never left.",
		func(c *transportCounters) uint64 { return c.notPosted.Load() }),
	perWire("hawser_ack_timeouts_total", "Notifications whose acknowledgement was overdue.",
		func(c *transportCounters) uint64 { return c.timeouts.Load() }),
	perWire("hawser_unknown_outcomes_total", "Frames of which a transport said that they may have left.",
		func(c *transportCounters) uint64 { return c.unknown.Load() }),
	total("hawser_fast_resends_total", "Copies due since three frames sent later over the same path were acknowledged.",
		func(c *counters) *atomic.Uint64 { return &c.FastResends }),
	total("hawser_receipts_missed_total", "At protocols 0 and 1: frames that the RPC fallback gave no receipt for in time.",
		func(c *counters) *atomic.Uint64 { return &c.ReceiptsMissed }),
	total("hawser_acks_received_total", "Acknowledgements that counted.",
		func(c *counters) *atomic.Uint64 { return &c.AcksReceived }),
	total("hawser_credit_requests_total", "Requests for room, and words of the floor, sent to receivers.",
		func(c *counters) *atomic.Uint64 { return &c.CreditRequests }),
	total("hawser_room_lost_total", "How often a receiver's room came to 0.",
		func(c *counters) *atomic.Uint64 { return &c.RoomLost }),
	closed("hawser_hellos_total", "Hellos said, by what came of them.", "result", helloNames[:],
		func(c *counters) []atomic.Uint64 { return c.helloSent[:] }),
	total("hawser_sessions_reopened_total", "Sessions given up by this sender: the receiver no longer holds them, or may not.",
		func(c *counters) *atomic.Uint64 { return &c.Reopened }),

	perWireOrLocal("hawser_notifications_received_total", "Notifications queued here; transport is local for those of the engine to itself.",
		func(c *transportCounters) uint64 { return c.received.Load() }),
	single("hawser_notifications_duplicate_total", "Copies that were recognised and dropped.",
		func(s *snapshot) float64 { return float64(s.stats.Duplicates) }),
	total("hawser_notifications_unstamped_total", "Notifications queued without a stamp (protocol 0): a copy would not be recognised.",
		func(c *counters) *atomic.Uint64 { return &c.Unstamped }),
	closed("hawser_notifications_dropped_total",
		"Notifications that did not enter the receive queue: full and part_full are sent again by their senders, lost and too_late (protocols 0 and 1) are not.",
		"reason", dropNames[:], func(c *counters) []atomic.Uint64 { return c.dropped[:] }),
	total("hawser_read_stalls_total", "At protocols 0 and 1: waits for room in the receive queue instead of reading on.",
		func(c *counters) *atomic.Uint64 { return &c.Stalls }),
	total("hawser_acks_sent_total", "Acknowledgements sent.",
		func(c *counters) *atomic.Uint64 { return &c.AcksSent }),
	total("hawser_acks_without_room_total", "Those of them that granted no room.",
		func(c *counters) *atomic.Uint64 { return &c.AcksWithoutRoom }),
	total("hawser_room_acks_total", "Acknowledgements due since room had returned.",
		func(c *counters) *atomic.Uint64 { return &c.RoomAcks }),
	total("hawser_credit_requests_received_total", "Requests for room that were answered.",
		func(c *counters) *atomic.Uint64 { return &c.CreditAnswers }),
	single("hawser_floor_updates_total", "Senders' floors that passed numbers which never came: ended by their senders.",
		func(s *snapshot) float64 { return float64(s.e.queue.Floors()) }),
	total("hawser_session_unknown_answers_total", "Answers that a frame's session is not held here; more frames than that may have had none.",
		func(c *counters) *atomic.Uint64 { return &c.Refusals }),
	closed("hawser_hellos_received_total", "Peers' hellos, by what became of the session that they propose.", "result", sessionNames[:],
		func(c *counters) []atomic.Uint64 { return c.helloReceived[:] }),
	closed("hawser_sessions_ended_total", "Senders' sessions that are no longer remembered, and why.", "reason", sessionEndNames[:],
		func(c *counters) []atomic.Uint64 { return c.sessionsEnded[:] }),
	{name: "hawser_frames_rejected_total", labels: []string{"reason"},
		help: "What peers and plugins sent that makes no sense.",
		read: func(s *snapshot, emit emit) {
			emit(float64(s.stats.Malformed), "malformed")
			emit(float64(s.stats.OutOfRange), "out_of_range")
			emit(float64(s.stats.WrongLife), "wrong_life")
			emit(float64(s.stats.UnknownSession), "unknown_session")
			emit(float64(s.stats.ForeignAcks), "foreign_ack")
			emit(float64(s.stats.Nonsense), "nonsense")
		}},
	single("hawser_impostors_total", "Calls and answers in the name of an engine that bears another certificate; all were refused.",
		func(s *snapshot) float64 { return float64(s.stats.Impostors) }),

	perWire("hawser_connects_total", "Endpoints made from this side.",
		func(c *transportCounters) uint64 { return c.connects.Load() }),
	perWire("hawser_accepts_total", "Endpoints made from the peers' side.",
		func(c *transportCounters) uint64 { return c.accepts.Load() }),
	perWire("hawser_connect_failures_total", "Attempts to make one that failed.",
		func(c *transportCounters) uint64 { return c.connectFailure.Load() }),
	perWire("hawser_accept_failures_total", "Attempts of peers that the transport here refused.",
		func(c *transportCounters) uint64 { return c.acceptFailure.Load() }),

	{name: "hawser_events_total", labels: []string{"event"}, values: eventLabels(), help: "What Engine.Events tells, whether or not anybody listens.",
		read: func(s *snapshot, emit emit) {
			for i, event := range eventLabels() {
				emit(float64(s.e.hub.told[i+1].Load()), event)
			}
		}},
	single("hawser_events_lost_total", "Events that a subscription was too slow for.",
		func(s *snapshot) float64 { return float64(s.e.hub.lost.Load()) }),
	single("hawser_peers_silent", "Addresses that are marked as silent.",
		func(s *snapshot) float64 { return float64(s.stats.Silent) }),
	total("hawser_peer_marks_total", "Marks made: an address gave no answer in time.",
		func(c *counters) *atomic.Uint64 { return &c.Marks }),
	closed("hawser_peer_marks_ended_total", "Marks that ended by an answer, or that were forgotten: expired, void, evicted, or the peer is gone.",
		"how", markEndNames[:], func(c *counters) []atomic.Uint64 { return c.marksEnded[:] }),
	total("hawser_calls_failed_fast_total", "Calls that were not made since their address is marked.",
		func(c *counters) *atomic.Uint64 { return &c.FailedFast }),
	closed("hawser_probes_total", "The prober's calls, by what they said.", "result", probeNames[:],
		func(c *counters) []atomic.Uint64 { return c.probes[:] }),
	perWire("hawser_path_pauses_total", "Pauses of paths.",
		func(c *transportCounters) uint64 { return c.pauses.Load() }),
	{name: "hawser_path_errors_total", labels: []string{"transport", "error"}, values: errorNames[:],
		help: "Failures that count against their path.",
		read: func(s *snapshot, emit emit) {
			for _, c := range s.counters {
				for i := range c.errors {
					emit(float64(c.errors[i].Load()), c.name, errorNames[i])
				}
			}
		}},
	closed("hawser_path_errors_excused_total", "Failures on a path that are not its fault; unproven: an overdue acknowledgement that the peer may be to blame for.",
		"reason", excuseNames[:], func(c *counters) []atomic.Uint64 { return c.excused[:] }),
	total("hawser_freezes_total", "How often this process did not run for half a second or more.",
		func(c *counters) *atomic.Uint64 { return &c.Freezes }),
	single("hawser_frozen_seconds_total", "For how long.",
		func(s *snapshot) float64 { return float64(s.e.stats.Frozen.Load()) / 1e9 }),
	closed("hawser_verdicts_voided_total", "What fell due in a freeze of this process and counts for nothing.",
		"verdict", voidNames[:], func(c *counters) []atomic.Uint64 { return c.voided[:] }),

	{name: "hawser_transport_state", labels: []string{"transport", "state"},
		help: "1 for the state that a configured transport is in.",
		read: func(s *snapshot, emit emit) {
			for _, t := range s.transports {
				for _, state := range transportStates {
					emit(truth(t.State == state), t.Name, state)
				}
			}
		}},
	{name: "hawser_transport_info", labels: []string{"transport", "wire"},
		help: "1; the name by which traffic over a configured transport is counted.",
		read: func(s *snapshot, emit emit) {
			for _, t := range s.transports {
				emit(1, t.Name, t.Wire)
			}
		}},
	perTransport("hawser_plugin_restarts_total", "Starts of a transport's plugin after the first.",
		func(t TransportStatus) float64 { return float64(t.Restarts) }),
	perTransport("hawser_transport_downs_total", "Instances of a transport that went down, replaced ones included.",
		func(t TransportStatus) float64 { return float64(t.Downs) }),
	perTransport("hawser_plugin_quarantines_total", "How often a plugin was given up for minutes.",
		func(t TransportStatus) float64 { return float64(t.Quarantines) }),
	perTransport("hawser_plugin_abandoned", "Plugin processes that were killed and are not gone.",
		func(t TransportStatus) float64 { return float64(t.Abandoned) }),
	perTransport("hawser_plugin_records_dropped_total", "What a plugin sent of endpoints and frames that it does not have.",
		func(t TransportStatus) float64 { return float64(t.Dropped) }),

	single("hawser_outbox_bytes", "Bytes of what is pending, to all peers.",
		func(s *snapshot) float64 { return float64(s.stats.OutboxBytes) }),
	single("hawser_outbox_limit_bytes", "outbox.total_bytes.",
		func(s *snapshot) float64 { return float64(s.e.cfg.Outbox.TotalBytes) }),
	{name: "hawser_outbox_notifications", labels: []string{"state"},
		help: "Pending notifications: waiting (never sent), sent (under way) or resend (to be sent again).",
		read: func(s *snapshot, emit emit) {
			var waiting, sent, resend int
			for _, p := range s.peers {
				waiting, sent, resend = waiting+p.Waiting, sent+p.Sent, resend+p.Resend
			}
			emit(float64(waiting), "waiting")
			emit(float64(sent), "sent")
			emit(float64(resend), "resend")
		}},
	single("hawser_receive_queue_notifications", "Notifications waiting for Receive.",
		func(s *snapshot) float64 { return float64(s.stats.Queued) }),
	single("hawser_receive_queue_limit_notifications", "receive.frames.",
		func(s *snapshot) float64 { return float64(s.e.cfg.Receive.Frames) }),
	single("hawser_receive_queue_bytes", "Their bytes.",
		func(s *snapshot) float64 { return float64(s.stats.QueuedBytes) }),
	single("hawser_receive_queue_limit_bytes", "receive.bytes.",
		func(s *snapshot) float64 { return float64(s.e.cfg.Receive.Bytes) }),
	perQueue("hawser_queue_notifications", "Notifications waiting in each queue of NewQueue, and in the default one.",
		func(p *inbox.Part[Received]) int { n, _ := p.Size(); return n }),
	perQueue("hawser_queue_bytes", "Their bytes.",
		func(p *inbox.Part[Received]) int { _, n := p.Size(); return n }),
	perQueue("hawser_queue_limit_notifications", "QueueBounds.Frames.",
		func(p *inbox.Part[Received]) int { n, _ := p.Bounds(); return n }),
	perQueue("hawser_queue_limit_bytes", "QueueBounds.Bytes.",
		func(p *inbox.Part[Received]) int { _, n := p.Bounds(); return n }),
	single("hawser_sessions", "Senders that are remembered.",
		func(s *snapshot) float64 { return float64(s.stats.Sessions) }),
	single("hawser_sessions_limit", "sessions.max.",
		func(s *snapshot) float64 { return float64(s.e.cfg.Sessions.Max) }),

	single("hawser_associations", "Peers' lives, and addresses without an answer, of which something is held.",
		func(s *snapshot) float64 { return float64(s.stats.Associations) }),
	{name: "hawser_peers", labels: []string{"session"},
		help: "The same by how far sending to them has come: none, opening or open.",
		read: func(s *snapshot, emit emit) {
			for _, state := range []string{"none", "opening", "open"} {
				emit(count(s, func(p PeerStatus) bool { return p.Session == state }), state)
			}
		}},
	single("hawser_peers_without_room", "Peers whose room holds something back.",
		func(s *snapshot) float64 { return count(s, func(p PeerStatus) bool { return p.Held }) }),
	single("hawser_peers_at_span", "Peers to which nothing new may go out: 4096 numbers from the lowest unresolved one on are used up.",
		func(s *snapshot) float64 {
			return count(s, func(p PeerStatus) bool { return p.Session == "open" && p.Waiting > 0 && p.Room == 0 && !p.Held })
		}),
	single("hawser_peers_without_path", "Peers for which something is pending, and no path is usable.",
		func(s *snapshot) float64 {
			return count(s, func(p PeerStatus) bool { return p.Pending > 0 && !p.Self && len(p.Usable()) == 0 })
		}),
	{name: "hawser_paths", labels: []string{"transport", "state"},
		help: "Paths to peers, by state.", read: readPaths},
	{name: "hawser_frames_in_flight", labels: []string{"transport"},
		help: "Frames given to a transport that have no outcome.",
		read: func(s *snapshot, emit emit) {
			sums := map[string]int{}
			for _, c := range s.counters {
				sums[c.name] = 0
			}
			for _, p := range s.peers {
				for _, w := range p.Paths {
					sums[s.wire(w.Transport)] += w.InFlight
				}
			}
			for name, n := range sums {
				emit(float64(n), name)
			}
		}},

	perPeer("hawser_peer_pending", "Notifications to a peer that have not ended.",
		func(p PeerStatus) float64 { return float64(p.Pending) }),
	perPeer("hawser_peer_outbox_bytes", "Their bytes.",
		func(p PeerStatus) float64 { return float64(p.OutboxBytes) }),
	perPeer("hawser_peer_room", "How many more notifications a peer lets go out.",
		func(p PeerStatus) float64 { return float64(p.Room) }),
	perPeer("hawser_peer_usable_paths", "Paths to a peer that take notifications.",
		func(p PeerStatus) float64 { return float64(len(p.Usable())) }),
}

// eventLabels are the kinds of events, from PeerUp on.
func eventLabels() (list []string) {
	for _, name := range eventNames[PeerUp:] {
		list = append(list, strings.ReplaceAll(name, " ", "_"))
	}
	return list
}

func truth(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// usualReasons are there from the start, so that a first failure shows as an
// increase.
var usualReasons = map[sdk.Code]bool{
	sdk.Unavailable: true, sdk.TooLarge: true, sdk.SessionUnknown: true,
	sdk.PeerRestarted: true, sdk.DeadlineExceeded: true, sdk.Closed: true,
}

func readFailed(s *snapshot, emit emit) {
	for i, code := range []sdk.Code{sdk.NotSent, sdk.DeliveryUnknown} {
		for j := range numReasons {
			reason := sdk.Code(j)
			if n := s.e.stats.failed[i][j].Load(); n > 0 || usualReasons[reason] {
				emit(float64(n), reasonLabel(code), reasonLabel(reason))
			}
		}
	}
}

// reasonLabel is a code as a label's value.
func reasonLabel(c sdk.Code) string {
	if !c.Valid() {
		return otherName
	}
	return strings.ReplaceAll(c.Error(), " ", "_")
}

func readPaths(s *snapshot, emit emit) {
	type key struct{ transport, state string }
	sums := map[key]int{}
	for _, c := range s.counters {
		for _, state := range pathStates {
			sums[key{c.name, state}] = 0
		}
	}
	for _, p := range s.peers {
		for _, w := range p.Paths {
			sums[key{s.wire(w.Transport), w.State}]++
		}
	}
	for k, n := range sums {
		emit(float64(n), k.transport, k.state)
	}
}

// wire is the label of a transport's name on the wire.
func (s *snapshot) wire(name string) string { return s.e.stats.of(name).name }

// collector is an engine's metrics for Prometheus.
type collector struct {
	e     *Engine
	descs []*prometheus.Desc // of metricTable
	limit int                // of peers with a label of their own

	mu    sync.Mutex
	known map[string]bool // peers with one
}

func newCollector(e *Engine, peers int) *collector {
	c := &collector{e: e, limit: peers, known: map[string]bool{}}
	for _, m := range metricTable {
		c.descs = append(c.descs, prometheus.NewDesc(m.name, m.help, m.labels, nil))
	}
	return c
}

// Describe lists the metrics.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	for i, m := range metricTable {
		if !m.perPeer || c.limit > 0 {
			out <- c.descs[i]
		}
	}
}

// Collect reads them.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s := &snapshot{
		e: c.e, stats: c.e.Stats(), transports: c.e.Transports(), peers: c.e.Peers(), label: c.label,
	}
	for _, t := range s.transports {
		if t.Wire != "" {
			c.e.stats.of(t.Wire) // it is there before its first frame
		}
	}
	s.counters = c.e.stats.byTransport()
	for i, m := range metricTable {
		switch {
		case m.perPeer && c.limit <= 0:
		case m.name == latencyName:
			out <- c.e.stats.latency.metric(c.descs[i])
		default:
			kind := prometheus.GaugeValue
			if strings.HasSuffix(m.name, "_total") {
				kind = prometheus.CounterValue
			}
			m.read(s, func(v float64, labels ...string) {
				out <- prometheus.MustNewConstMetric(c.descs[i], kind, v, labels...)
			})
		}
	}
}

// metric is the histogram; buckets count all that is not above their bound.
func (l *latencies) metric(d *prometheus.Desc) prometheus.Metric {
	buckets := make(map[float64]uint64, len(latencyBounds))
	sum := float64(l.sum.Load()) / 1e9
	var n uint64
	for i, bound := range latencyBounds {
		n += l.counts[i].Load()
		buckets[bound.Seconds()] = n
	}
	n += l.counts[len(latencyBounds)].Load()
	return prometheus.MustNewConstHistogram(d, n, sum, buckets)
}

// label gives the first peers that are met a label of their own. They keep it:
// a label that wanders from peer to peer would say nothing.
func (c *collector) label(address string) string {
	address = strings.ToValidUTF8(address, "?")
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known[address] {
		if len(c.known) >= c.limit {
			return otherName
		}
		c.known[address] = true
	}
	return address
}

// metrics is the registration of an engine's collector.
type metrics struct {
	collector *collector
	registry  prometheus.Registerer
	gatherer  prometheus.Gatherer // what /metrics shows
}

// registerMetrics returns nil without a registerer.
func registerMetrics(e *Engine, o seam.Options) (*metrics, error) {
	if o.Metrics == nil {
		if o.PeerMetrics != 0 {
			return nil, sdk.Errorf(sdk.InvalidArgument, "WithPeerMetrics(%s) needs WithMetrics", strconv.Itoa(o.PeerMetrics))
		}
		return nil, nil
	}
	m := &metrics{collector: newCollector(e, o.PeerMetrics), registry: o.Metrics}
	if err := o.Metrics.Register(m.collector); err != nil {
		var twice prometheus.AlreadyRegisteredError
		if errors.As(err, &twice) {
			return nil, sdk.Errorf(sdk.Busy, "metrics: another engine uses this registerer: wrap it for each, "+
				"with prometheus.WrapRegistererWith and a label that differs")
		}
		return nil, sdk.Errorf(sdk.InvalidArgument, "metrics: %w", err)
	}
	if g, ok := o.Metrics.(prometheus.Gatherer); ok {
		m.gatherer = g
	} else { // a wrapped one: show what is ours
		own := prometheus.NewRegistry()
		own.MustRegister(m.collector)
		m.gatherer = own
	}
	return m, nil
}

func (m *metrics) unregister() {
	if m != nil {
		m.registry.Unregister(m.collector)
	}
}
