package engine

import (
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

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
	string(pluginhost.Quarantined), string(pluginhost.Stopped), "absent",
}

// Marks of peers, pauses of paths and what else package health will know
// belong into this table, beside hawser_paths.
var metricTable = []metric{
	perWire("hawser_notifications_sent_total", "Copies of notifications given to a transport.",
		func(c *transportCounters) uint64 { return c.sent.Load() }),
	perWire("hawser_notifications_resent_total", "Those of them that were not the first.",
		func(c *transportCounters) uint64 { return c.resent.Load() }),
	single("hawser_notifications_acked_total", "Notifications acknowledged by their receivers.",
		func(s *snapshot) float64 { return float64(s.stats.Acked) }),
	single("hawser_notifications_handed_over_total", "Notifications that a transport took for a peer that tells no more.",
		func(s *snapshot) float64 { return float64(s.e.stats.tally.handedOver.Load()) }),
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
	single("hawser_credit_requests_total", "Requests for room sent to receivers.",
		func(s *snapshot) float64 { return float64(s.stats.CreditRequests) }),

	{name: "hawser_notifications_received_total", labels: []string{"transport"},
		help: "Notifications queued here; transport is local for those of the engine to itself.",
		read: func(s *snapshot, emit emit) {
			for _, c := range s.counters {
				emit(float64(c.received.Load()), c.name)
			}
			emit(float64(s.e.stats.local.received.Load()), localTransport)
		}},
	single("hawser_notifications_duplicate_total", "Copies that were recognised and dropped.",
		func(s *snapshot) float64 { return float64(s.stats.Duplicates) }),
	single("hawser_notifications_dropped_total", "Copies that found the receive queue full; their senders keep them.",
		func(s *snapshot) float64 { return float64(s.stats.DroppedFull) }),
	single("hawser_acks_sent_total", "Acknowledgements sent.",
		func(s *snapshot) float64 { return float64(s.stats.AcksSent) }),
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
