package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// samples collects an engine's metrics: "name{label=value,...}" to value; of a
// histogram its count.
func samples(t *testing.T, e *Engine, peers int) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(newCollector(e, peers)); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out[f.GetName()+labelsOf(m)] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

func labelsOf(m *dto.Metric) string {
	var list []string
	for _, l := range m.GetLabel() {
		list = append(list, l.GetName()+"="+l.GetValue())
	}
	if list == nil {
		return ""
	}
	return "{" + strings.Join(list, ",") + "}"
}

// moved checks that metrics have risen since before by at least 1, and says
// what did if not.
func moved(t *testing.T, e *Engine, before map[string]float64, names ...string) {
	t.Helper()
	now := samples(t, e, 0)
	for _, n := range names {
		if now[n] <= before[n] {
			var changed []string
			for _, k := range slices.Sorted(maps.Keys(now)) {
				if now[k] != before[k] {
					changed = append(changed, fmt.Sprintf("%s: %v to %v", k, before[k], now[k]))
				}
			}
			t.Errorf("%s is %v, was %v; what changed:\n%s", n, now[n], before[n], strings.Join(changed, "\n"))
		}
	}
}

// metricCase makes something happen between a:1 and b:1, which have spoken, and
// says what has risen by then.
type metricCase struct {
	name string
	at   string // whose metrics; default a:1
	fire func(t *testing.T, w *world, a, b *Engine)
	want []string
	// prepare changes the world before the engines are opened.
	prepare func(w *world)
}

// trafficCases are what happens to notifications and transports in general;
// ruleCases are the rest.
func trafficCases() []metricCase {
	return []metricCase{
		{"sent and acknowledged", "", func(t *testing.T, w *world, a, b *Engine) {
			w.notify(a, "b:1", "more")
			w.expect(b, "more")
		}, []string{
			"hawser_notifications_sent_total{transport=fast}", "hawser_notifications_acked_total", latencyName,
		}, nil},
		{"received", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			w.notify(a, "b:1", "more")
			w.expect(b, "more")
		}, []string{"hawser_notifications_received_total{transport=fast}", "hawser_acks_sent_total"}, nil},
		{"to itself", "", func(t *testing.T, w *world, a, b *Engine) {
			w.notify(a, "a:1", "own")
			w.expect(a, "own")
		}, []string{"hawser_notifications_received_total{transport=local}", "hawser_notifications_acked_total", latencyName}, nil},
		{"an endpoint ends", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.CutBoth("a:1", "b:1", "")
			d := w.notify(a, "b:1", "x")
			time.Sleep(10 * time.Millisecond)
			w.fast.End("a:1", "b:1", "")
			if err := w.wait(d); err != nil {
				t.Error(err)
			}
			w.expect(b, "x")
		}, []string{
			"hawser_handovers_total{transport=fast}", "hawser_notifications_resent_total{transport=rpcfallback}",
			"hawser_fallbacks_total{from=fast,to=rpcfallback}", "hawser_notifications_sent_total{transport=rpcfallback}",
		}, nil},
		{"an ack is overdue", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.Cut("a:1", "b:1", "")
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); err != nil {
				t.Error(err)
			}
			w.expect(b, "x")
			w.fast.Heal("a:1", "b:1", "")
		}, []string{"hawser_ack_timeouts_total{transport=fast}", "hawser_fallbacks_total{from=fast,to=rpcfallback}"}, nil},
		{"a duplicate", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.Cut("b:1", "a:1", "") // only acks are lost
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); err != nil {
				t.Error(err)
			}
			w.expect(b, "x")
		}, []string{"hawser_notifications_duplicate_total"}, nil},
		{"a deadline", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.Cut("", "", "")
			w.slow.Cut("", "", "")
			d := w.notify(a, "b:1", "x")
			if err := w.wait(d); !errors.Is(err, DeliveryUnknown) {
				t.Error(err)
			}
			w.fast.Heal("", "", "")
			w.slow.Heal("", "", "")
		}, []string{"hawser_notifications_failed_total{end=delivery_unknown,reason=deadline_exceeded}"}, nil},
		{"never sent", "", func(t *testing.T, w *world, a, b *Engine) {
			if err := w.wait(w.notify(a, "nobody:1", "x")); !errors.Is(err, NotSent) {
				t.Error(err)
			}
		}, []string{"hawser_notifications_failed_total{end=not_sent,reason=deadline_exceeded}"}, nil},
		{"refused", "", func(t *testing.T, w *world, a, b *Engine) {
			_, err := a.Notify(context.Background(), "b:1", Notification{Payload: make([]byte, 16<<20+1)})
			if !errors.Is(err, TooLarge) {
				t.Error(err)
			}
		}, []string{"hawser_notifications_refused_total{reason=too_large}"}, nil},
		{"no room", "", func(t *testing.T, w *world, a, b *Engine) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			var refused error
			for i := 0; refused == nil && i < 10_000; i++ {
				_, refused = a.Notify(ctx, "b:1", Notification{Payload: make([]byte, 1<<10)})
			}
			if !errors.Is(refused, Backpressure) {
				t.Error(refused)
			}
			time.Sleep(10 * time.Second)
		}, []string{
			"hawser_notifications_refused_total{reason=backpressure}", "hawser_credit_requests_total",
			"hawser_peers_without_room", "hawser_outbox_bytes", "hawser_outbox_notifications{state=waiting}",
			"hawser_notifications_pending",
		}, nil},
		{"a full queue", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			for range 40 {
				_, _ = a.Notify(context.Background(), "b:1", Notification{})
			}
			time.Sleep(5 * time.Second)
		}, []string{"hawser_receive_queue_notifications", "hawser_receive_queue_bytes"}, nil},
		{"a plugin dies", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.Kill("a:1")
			time.Sleep(5 * time.Second)
		}, []string{
			"hawser_plugin_restarts_total{transport=fast}", "hawser_transport_downs_total{transport=fast}",
		}, nil},
		{"a plugin dies again and again", "", func(t *testing.T, w *world, a, b *Engine) {
			for range 6 {
				w.fast.Kill("a:1")
				time.Sleep(5 * time.Second)
			}
		}, []string{
			"hawser_plugin_quarantines_total{transport=fast}", "hawser_transport_state{state=quarantined,transport=fast}",
		}, nil},
		{"connected anew", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.End("", "", "")
			time.Sleep(10 * time.Second)
			w.notify(a, "b:1", "x")
			w.expect(b, "x")
		}, []string{"hawser_connects_total{transport=fast}"}, nil},
		{"accepted", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.End("", "", "")
			time.Sleep(10 * time.Second)
			w.notify(a, "b:1", "x")
			w.expect(b, "x")
		}, []string{"hawser_accepts_total{transport=fast}"}, nil},
		{"not connected", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.End("", "", "")
			time.Sleep(10 * time.Second)
			w.network.Silence("a:1", "b:1", true)
			w.notify(a, "b:1", "x")
			w.expect(b, "x")
			w.network.Silence("a:1", "b:1", false)
		}, []string{"hawser_connect_failures_total{transport=fast}"}, nil},
		{"given back", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.Cut("a:1", "b:1", "")
			d := w.notify(a, "b:1", "x")
			ep := connected(t, a, "fast")
			ep.a.mu.Lock()
			id := ep.inflight.base
			ep.a.mu.Unlock()
			ep.Completed([]sdk.Completion{{ID: id, Outcome: sdk.NotPosted, Code: Refused}})
			if err := w.wait(d); err != nil {
				t.Error(err)
			}
			w.expect(b, "x")
		}, []string{"hawser_not_posted_total{transport=fast}", "hawser_fallbacks_total{from=fast,to=rpcfallback}"}, nil},
		{"under way", "", func(t *testing.T, w *world, a, b *Engine) {
			w.fast.Cut("a:1", "b:1", "")
			w.notify(a, "b:1", "x")
		}, []string{
			"hawser_frames_in_flight{transport=fast}", "hawser_outbox_notifications{state=sent}", "hawser_notifications_pending",
		}, nil},
		{"more than the queue holds", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			for range 40 {
				connected(t, b, "fast").Received([][]byte{frame.AppendRaw(nil, "x", nil)})
			}
		}, []string{"hawser_notifications_dropped_total{reason=lost}", "hawser_notifications_received_total{transport=fast}"}, nil},
		{"another sender", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			c := w.open("c:1")
			w.notify(c, "b:1", "x")
			w.expect(b, "x")
			w.more = append(w.more, c)
		}, []string{"hawser_sessions", "hawser_associations", "hawser_peers{session=none}", "hawser_paths{state=up,transport=fast}"}, nil},
		{"nobody answers", "", func(t *testing.T, w *world, a, b *Engine) {
			w.notify(a, "nobody:1", "x")
			time.Sleep(time.Second)
		}, []string{"hawser_peers{session=opening}", "hawser_peers_without_path", "hawser_outbox_notifications{state=waiting}"}, nil},
		{"an impostor", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			w.network.Identify("m:1", `"mallory"`)
			m := w.network.Carrier("m:1")
			defer m.Close(context.Background()) //nolint:errcheck // the test's own
			_ = m.Dial("b:1").Goodbye(context.Background(), control.GoodbyeRequest{From: a.incarnation})
		}, []string{"hawser_impostors_total"}, nil},
		{"rubbish", "b:1", func(t *testing.T, w *world, a, b *Engine) {
			rubbish(t, b)
			time.Sleep(time.Second)
		}, []string{
			"hawser_frames_rejected_total{reason=malformed}", "hawser_frames_rejected_total{reason=wrong_life}",
			"hawser_frames_rejected_total{reason=unknown_session}", "hawser_frames_rejected_total{reason=foreign_ack}",
			"hawser_frames_rejected_total{reason=out_of_range}", "hawser_frames_rejected_total{reason=nonsense}",
			"hawser_session_unknown_answers_total",
		}, nil},
	}
}

// TestMetricsMove makes each rule fire and looks at its metric.
func TestMetricsMove(t *testing.T) {
	looked := map[string]bool{}
	for _, c := range slices.Concat(trafficCases(), ruleCases(), memoryCases()) {
		for _, want := range c.want {
			name, _, _ := strings.Cut(want, "{")
			looked[name], looked[want] = true, true
		}
		t.Run(c.name, func(t *testing.T) {
			run(t, func(w *world) {
				w.configs["a:1"] = Config{
					Outbox:       OutboxConfig{Bytes: 1 << 20},
					Notification: NotificationConfig{MaxPayloadBytes: 1 << 20},
					RPC:          RPCConfig{RequestTimeoutMS: 2000, BootstrapTimeoutMS: 2000, ConnectTimeoutMS: 2000},
				}
				w.configs["b:1"] = Config{Receive: ReceiveConfig{Frames: 32}}
				if c.prepare != nil {
					c.prepare(w)
				}
				a, b := w.open("a:1"), w.open("b:1")
				w.notify(a, "b:1", "first")
				w.expect(b, "first")
				of := a
				if c.at == "b:1" {
					of = b
				}
				before := samples(t, of, 0)
				c.fire(t, w, a, b)
				synctest.Wait() // what a's transport has handed over, b's engine has taken in
				moved(t, of, before, c.want...)
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				for _, e := range append(w.more, a, b) {
					_ = e.Close(ctx)
				}
			})
		})
	}
	// Limits and names do not move; no plugin of these tests is a process.
	table := metricTable
	if len(memoryCases()) == 0 {
		table = notificationMetrics
	}
	for _, m := range table {
		for _, v := range m.values {
			sample := m.name + "{" + m.labels[len(m.labels)-1] + "=" + v
			if !looked[sample+"}"] && !looked[sample+",transport=fast}"] {
				t.Errorf("nothing moves %s of %s", v, m.name)
			}
		}
		if !looked[m.name] && !m.perPeer && !strings.Contains(m.name, "_limit") &&
			m.name != "hawser_transport_info" && m.name != "hawser_plugin_abandoned" {
			t.Errorf("nothing moves %s", m.name)
		}
	}
}

// connected returns the engine's endpoint over a transport.
func connected(t *testing.T, e *Engine, transport string) *endpoint {
	t.Helper()
	for _, a := range e.directory.all() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, p := range a.order {
			if p.up() && p.transport == transport {
				return p.ep
			}
		}
	}
	t.Error("nothing is connected over " + transport)
	return nil
}

// rubbish hands frames to the engine's endpoint that make no sense.
func rubbish(t *testing.T, e *Engine) {
	ep := connected(t, e, "fast")
	epoch, session := e.incarnation.Epoch(), ep.a.in.ID()
	raw := frame.AppendRaw(nil, "x", nil)
	typed := func(h frame.Header, payload []byte) []byte { return h.Append(nil, payload) }
	ep.Received([][]byte{
		{1, 2, 3},
		typed(frame.Header{Type: frame.NotifyCompat, Flags: frame.NeedsAck, Session: session, Epoch: epoch + 1, Seq: 2, Ack: 1}, raw),
		typed(frame.Header{Type: frame.NotifyCompat, Flags: frame.NeedsAck, Session: session + 1, Epoch: epoch, Seq: 2, Ack: 1}, raw),
		typed(frame.Header{Type: frame.NotifyCompat, Flags: frame.NeedsAck, Session: session, Epoch: epoch, Seq: 1 << 40, Ack: 1}, raw),
		typed(frame.Header{Type: frame.SessionClose, Session: session + 7, Epoch: epoch}, nil),
	})
	ep.Completed([]sdk.Completion{{ID: 1 << 50, Outcome: sdk.Done}})
}

// TestMetricsAreClosed looks at every label that there is after a good deal
// has happened.
func TestMetricsAreClosed(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		w.notify(a, "b:1", "one")
		w.expect(b, "one")
		_ = w.wait(w.notify(a, "secret-peer:1", "lost"))
		w.fast.End("", "", "")
		w.notify(a, "b:1", "two")
		w.expect(b, "two")

		transports := []string{"fast", "rpcfallback", "local", otherName}
		var reasons []string
		for c := range numReasons {
			reasons = append(reasons, reasonLabel(Code(c)))
		}
		allowed := map[string][]string{
			"transport": transports, "from": transports, "to": transports, "wire": transports,
			"queue": {""},
			"state": slices.Concat(transportStates, pathStates, []string{"waiting", "sent", "resend"}),
			"end":   {"not_sent", "delivery_unknown"}, "session": {"none", "opening", "open"},
			"reason": append(reasons, "malformed", "out_of_range", "wrong_life", "unknown_session", "foreign_ack", "nonsense"),
		}
		for sample := range samples(t, a, 0) {
			if strings.Contains(sample, ":1") {
				t.Errorf("%s names a peer", sample)
			}
			name, labels, ok := strings.Cut(strings.TrimSuffix(sample, "}"), "{")
			if !ok {
				continue
			}
			m := metricTable[slices.IndexFunc(metricTable, func(m metric) bool { return m.name == name })]
			if m.perPeer {
				t.Errorf("%s is there uncalled for", sample)
			}
			for l := range strings.SplitSeq(labels, ",") {
				k, v, _ := strings.Cut(l, "=")
				set := allowed[k]
				if m.values != nil && k != "transport" {
					set = m.values
				}
				if !slices.Contains(set, v) {
					t.Errorf("%s has %s, which is not one of %q", name, l, set)
				}
			}
		}
		w.shut(a, b)
	})
}

// The transports' names come from plugins, and the peers' from anywhere.
func TestMetricsAreBounded(t *testing.T) {
	var ty tally
	for i := range 10 * maxCountedTransports {
		ty.of(fmt.Sprint("t", i)).sent.Add(1)
	}
	if n := len(ty.byTransport()); n != maxCountedTransports+1 {
		t.Errorf("%d names of transports", n)
	}
	if n := ty.of(otherName).sent.Load(); n != 9*maxCountedTransports {
		t.Errorf("%d under %s", n, otherName)
	}
	run(t, func(w *world) {
		a, b, c := w.open("a:1"), w.open("b:1"), w.open("c:1")
		for _, peer := range []string{"b:1", "c:1", "nobody:1"} {
			w.notify(a, peer, "x")
		}
		w.expect(b, "x")
		w.expect(c, "x")
		r := samples(t, a, 2)
		var peers []string
		for name := range r {
			if strings.HasPrefix(name, "hawser_peer_room{") {
				peers = append(peers, name)
			}
		}
		if len(peers) != 2 && len(peers) != 3 || r["hawser_peer_pending{peer=other}"] > 1 {
			t.Errorf("peers have %q", peers)
		}
		w.shut(a, b, c)
	})
}

func TestMetricsRegistration(t *testing.T) {
	run(t, func(w *world) {
		r := prometheus.NewRegistry()
		open := func(address string, reg prometheus.Registerer) (*Engine, error) {
			return Open(context.Background(), Config{Node: NodeConfig{Name: address}, Transports: []TransportConfig{
				{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New(address) }},
			}}, withCarrier(w.network.Carrier(address)), WithMetrics(reg), WithPeerMetrics(1))
		}
		a, err := open("a:1", r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open("b:1", r); !errors.Is(err, Busy) || !strings.Contains(err.Error(), "WrapRegistererWith") {
			t.Errorf("a second engine: %v", err)
		}
		w.shut(a)
		fresh := prometheus.NewRegistry()
		var both []*Engine
		for _, node := range []string{"a", "b"} {
			e, err := open(node+":1", prometheus.WrapRegistererWith(prometheus.Labels{"node": node}, fresh))
			if err != nil {
				t.Fatalf("with a label of its own: %v", err)
			}
			both = append(both, e)
		}
		w.shut(both...)
		if _, err := Open(context.Background(), Config{}, WithPeerMetrics(3)); !errors.Is(err, InvalidArgument) {
			t.Errorf("got %v", err)
		}
	})
}

func TestLatencyBuckets(t *testing.T) {
	var l latencies
	for _, d := range []time.Duration{-1, 0, 50 * time.Microsecond, 50*time.Microsecond + 1, time.Second, time.Hour} {
		l.observe(d)
	}
	var m dto.Metric
	if err := l.metric(prometheus.NewDesc("x", "x", nil, nil)).Write(&m); err != nil {
		t.Fatal(err)
	}
	h := m.GetHistogram()
	at := map[float64]uint64{}
	for _, b := range h.GetBucket() {
		at[b.GetUpperBound()] = b.GetCumulativeCount()
	}
	if h.GetSampleCount() != 6 || at[50e-6] != 3 || at[100e-6] != 4 || at[1] != 5 || at[600] != 5 {
		t.Errorf("count %d, buckets %v", h.GetSampleCount(), at)
	}
}
