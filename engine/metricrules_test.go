package engine

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// ruleCases make the rules of the protocol and of health fire, one by one.
func ruleCases() []metricCase {
	var list []metricCase
	add := func(name, at string, prepare func(*world), fire func(t *testing.T, w *world, a, b *Engine), want ...string) {
		list = append(list, metricCase{name, at, fire, want, prepare})
	}
	offer := func(proto int) func(*world) { return func(w *world) { w.offer("b:1", proto) } }
	one := func(t *testing.T, w *world, a, b *Engine) {
		if err := w.wait(w.notify(a, "b:1", "x")); err != nil {
			t.Error(err)
		}
	}
	many := func(_ *testing.T, w *world, a, b *Engine) {
		for range 40 {
			_, _ = a.Notify(context.Background(), "b:1", Notification{})
		}
		time.Sleep(5 * time.Second)
	}

	// Ends and copies.
	add("handed over at protocol 0", "", offer(0), one, "hawser_notifications_handed_over_total")
	add("handed over at protocol 1", "", offer(1), one, "hawser_notifications_handed_over_total")
	add("without a stamp", "b:1", offer(0), one, "hawser_notifications_unstamped_total")
	add("acknowledged", "", nil, one, "hawser_acks_received_total")
	add("no receipt", "", func(w *world) {
		w.offer("b:1", 0)
		c := w.configs["a:1"]
		c.Transports = []TransportConfig{{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New("a:1") }}}
		w.configs["a:1"] = c
	}, func(t *testing.T, w *world, a, b *Engine) {
		w.slow.Cut("a:1", "b:1", "")
		if err := w.wait(w.notify(a, "b:1", "x")); !errors.Is(err, DeliveryUnknown) {
			t.Error(err)
		}
	}, "hawser_receipts_missed_total", "hawser_notifications_failed_total{end=delivery_unknown,reason=unavailable}")
	add("an unknown outcome", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		outcome(t, w, a, sdk.Completion{Outcome: sdk.Unknown, Code: Unavailable})
	}, "hawser_unknown_outcomes_total{transport=fast}")
	add("three later ones are acked", "", func(w *world) {
		w.losing("a:1", 1)
	}, func(t *testing.T, w *world, a, b *Engine) {
		d := w.notify(a, "b:1", "lost")
		for range 4 {
			one(t, w, a, b)
		}
		w.within(d, 100*time.Millisecond)
	}, "hawser_fast_resends_total")

	// Room.
	add("room 0", "", nil, many, "hawser_room_lost_total")
	add("no room to grant", "b:1", nil, many, "hawser_acks_without_room_total", "hawser_credit_requests_received_total")
	add("room returns", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		many(t, w, a, b)
		drain(b)
	}, "hawser_room_acks_total")
	add("two senders share a queue", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		c := w.open("c:1")
		w.more = append(w.more, c)
		w.notify(c, "b:1", "x")
		synctest.Wait()
		for range 40 {
			_, _ = c.Notify(context.Background(), "b:1", Notification{})
		}
		many(t, w, a, b)
	}, "hawser_notifications_dropped_total{reason=full}")
	add("a full part", "b:1", func(w *world) {
		w.queues = map[string][]*Queue{"b:1": {NewQueue("p", QueueBounds{Frames: 1})}}
	}, func(t *testing.T, w *world, a, b *Engine) {
		for range 3 {
			w.notify(a, "b:1", "part")
		}
		time.Sleep(time.Second)
	}, "hawser_notifications_dropped_total{reason=part_full}", "hawser_queue_notifications{queue=p}", "hawser_queue_bytes{queue=p}")
	add("a full queue of an older sender", "b:1", offer(0), many, "hawser_read_stalls_total")
	add("too late at protocol 1", "b:1", offer(1), func(t *testing.T, w *world, a, b *Engine) {
		ep := connected(t, b, "fast")
		for _, seq := range []uint64{9000, 2} {
			ep.Received([][]byte{stamped(frame.Header{Session: ep.a.in.ID(), Seq: seq})})
		}
	}, "hawser_notifications_dropped_total{reason=too_late}")
	add("the span is used up", "", func(w *world) {
		for _, node := range []string{"a:1", "b:1"} {
			c := w.configs[node]
			c.Outbox.Bytes, c.Receive.Frames = 16<<20, 1<<15
			w.configs[node] = c
		}
		w.losing("a:1", 1<<20)
	}, func(t *testing.T, w *world, a, b *Engine) {
		w.slow.Cut("a:1", "b:1", "")
		w.notify(a, "b:1", "lost")
		for range 4200 {
			_, _ = a.Notify(context.Background(), "b:1", Notification{})
		}
		time.Sleep(5 * time.Second)
	}, "hawser_peers_at_span")
	add("a floor", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		ep := connected(t, b, "fast")
		ep.Received([][]byte{stamped(frame.Header{
			Flags: frame.NeedsAck, Session: ep.a.in.ID(), Epoch: b.incarnation.Epoch(), Seq: 9, Ack: 9,
		})})
	}, "hawser_floor_updates_total")

	// Sessions.
	add("hello answered", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		c := w.open("c:1")
		w.more = append(w.more, c)
		_ = w.wait(w.notify(a, "c:1", "x"))
	}, "hawser_hellos_total{result=answered}", "hawser_events_total{event=peer_up}")
	add("hello failed", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		_ = w.wait(w.notify(a, "nobody:1", "x"))
	}, "hawser_hellos_total{result=failed}")
	add("hello opens", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		c := w.open("c:1")
		w.more = append(w.more, c)
		_ = w.wait(w.notify(c, "b:1", "x"))
	}, "hawser_hellos_received_total{result=opened}")
	add("too many sessions", "b:1", func(w *world) {
		c := w.configs["b:1"]
		c.Sessions.Max = 1
		w.configs["b:1"] = c
	}, func(t *testing.T, w *world, a, b *Engine) {
		c := w.open("c:1")
		w.more = append(w.more, c)
		_ = w.wait(w.notify(c, "b:1", "x"))
	}, "hawser_hellos_received_total{result=refused}")
	add("hello changes nothing", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		h := &answers{b, make(chan struct{})}
		close(h.open)
		if r, err := h.Hello(context.Background(), a.helloFor()); err != nil || r.Session == 1 {
			t.Error(r.Session, err)
		}
	}, "hawser_hellos_received_total{result=kept}")
	rested := func(t *testing.T, w *world, a, b *Engine) {
		time.Sleep(maxDeadline + time.Minute)
		one(t, w, a, b)
	}
	add("a rested session", "", nil, rested, "hawser_sessions_reopened_total")
	add("a replaced session", "b:1", nil, rested,
		"hawser_hellos_received_total{result=replaced}", "hawser_sessions_ended_total{reason=replaced}")
	add("a silent sender", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		time.Sleep(silence + time.Minute)
	}, "hawser_sessions_ended_total{reason=silent}")
	add("a peer that goes", "b:1", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.shut(a)
	}, "hawser_sessions_ended_total{reason=over}", "hawser_events_total{event=peer_gone}")
	add("a peer that restarts", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.network.Vanish("b:1")
		c := w.open("b:1")
		w.more = append(w.more, c)
		_ = w.wait(w.notify(c, "a:1", "x"))
	}, "hawser_events_total{event=peer_restarted}")

	// Marks.
	mark := func(t *testing.T, w *world, a *Engine) {
		w.more = append(w.more, w.open("c:1"))
		w.network.Freeze("c:1", true)
		w.unsent(w.notify(a, "c:1", "x"), 2*time.Second, 2100*time.Millisecond)
		time.Sleep(5 * time.Second)
	}
	add("a silent peer", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		mark(t, w, a)
		w.unsent(w.notify(a, "c:1", "x"), 0, 10*time.Millisecond)
	}, "hawser_hellos_total{result=silent}", "hawser_peer_marks_total", "hawser_peers_silent",
		"hawser_probes_total{result=silent}", "hawser_events_total{event=peer_silent}")
	add("a call to a silent peer", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.network.Freeze("b:1", true)
		if err := a.RestartTransport(context.Background(), "fast"); err != nil { // which peers are told of
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		w.network.Freeze("b:1", false)
	}, "hawser_calls_failed_fast_total")
	add("a silent peer answers", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		mark(t, w, a)
		w.network.Freeze("c:1", false)
		time.Sleep(3 * time.Second)
	}, "hawser_peer_marks_ended_total{how=answered}", "hawser_probes_total{result=answered}", "hawser_events_total{event=peer_resumed}")
	add("a silent peer is gone", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		mark(t, w, a)
		w.network.Freeze("c:1", false)
		w.network.Refuse("c:1", true)
		time.Sleep(3 * time.Second)
	}, "hawser_probes_total{result=gone}")
	add("a mark is void", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.network.Freeze("c:1", true)
		w.unsent(w.notify(a, "c:1", "x"), 2*time.Second, 2100*time.Millisecond)
		a.watch.thawed(time.Now().Add(-time.Second), time.Now())
		synctest.Wait()
	}, "hawser_peer_marks_ended_total{how=forgotten}", "hawser_freezes_total", "hawser_frozen_seconds_total")

	// Freezes of this process: the detector is told of one that lasts from now on.
	freeze := func(a *Engine) { a.freeze.Tick(time.Now().Add(time.Minute)) }
	add("a call in a freeze", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.more = append(w.more, w.open("c:1"))
		w.network.Freeze("c:1", true)
		a.watch.ask("c:1")
		time.Sleep(time.Second)
		freeze(a)
		time.Sleep(5 * time.Second)
	}, "hawser_verdicts_voided_total{verdict=call}", "hawser_probes_total{result=no_verdict}")
	add("an ack timeout in a freeze", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.fast.Cut("a:1", "b:1", "")
		w.notify(a, "b:1", "x")
		freeze(a)
		time.Sleep(5 * time.Second)
		w.fast.Heal("a:1", "b:1", "")
	}, "hawser_verdicts_voided_total{verdict=ack_timeouts}")
	add("an endpoint's end in a freeze", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		freeze(a)
		time.Sleep(10 * time.Millisecond)
		connected(t, a, "fast").Ended(Unavailable)
	}, "hawser_verdicts_voided_total{verdict=path_error}")

	// Paths.
	end := func(err error) func(t *testing.T, w *world, a, b *Engine) {
		return func(t *testing.T, w *world, a, b *Engine) { connected(t, a, "fast").Ended(err) }
	}
	add("an endpoint ends by itself", "", nil, end(Unavailable), "hawser_path_errors_total{error=endpoint_ended,transport=fast}")
	add("for want of room", "", nil, end(Backpressure), "hawser_path_errors_excused_total{reason=no_room}")
	add("with its plugin", "", nil, end(PluginExited), "hawser_path_errors_excused_total{reason=plugin_exited}")
	add("in order", "", nil, end(Closed), "hawser_path_errors_excused_total{reason=own_doing}")
	add("for stale memory", "", nil, end(sdk.StaleCapability), "hawser_path_errors_excused_total{reason=other}")
	add("a frame is not posted", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		outcome(t, w, a, sdk.Completion{Outcome: sdk.NotPosted, Code: Refused})
	}, "hawser_path_errors_total{error=not_posted,transport=fast}")
	again := func(t *testing.T, w *world, a, b *Engine) {
		connected(t, a, "fast").Ended(Unavailable)
		time.Sleep(10 * time.Second)
		one(t, w, a, b)
		time.Sleep(3 * time.Second)
	}
	refusing := func(code sdk.Code) func(w *world) {
		return func(w *world) {
			var made atomic.Int32
			c := w.configs["b:1"]
			c.Transports = w.hooked("b:1", func(h *hooked) {
				h.accept = func(ctx context.Context, t sdk.Target, offer []byte, eh sdk.Handler) (sdk.Endpoint, []byte, error) {
					if made.Add(1) > 1 {
						return nil, nil, sdk.Errorf(code, "not you")
					}
					return h.Notifier.Accept(ctx, t, offer, eh)
				}
			})
			w.configs["b:1"] = c
		}
	}
	add("a refused connect", "", refusing(Refused), again, "hawser_path_errors_total{error=refused,transport=fast}")
	add("a failed connect", "", refusing(Unavailable), again, "hawser_path_errors_total{error=connect_failed,transport=fast}")
	add("a refused accept", "b:1", refusing(Refused), again, "hawser_accept_failures_total{transport=fast}")
	add("a connect without an answer", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		connected(t, a, "fast").Ended(Unavailable)
		time.Sleep(10 * time.Second)
		w.network.Freeze("b:1", true)
		one(t, w, a, b)
		time.Sleep(13 * time.Second)
		w.network.Freeze("b:1", false)
	}, "hawser_path_errors_excused_total{reason=control_silent}")
	add("an overdue ack proves nothing", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.freezeNode("b:1", true)
		w.notify(a, "b:1", "x")
		time.Sleep(5 * time.Second)
		w.freezeNode("b:1", false)
	}, "hawser_path_errors_excused_total{reason=unproven}")
	lossy := func(t *testing.T, w *world, a, b *Engine) {
		w.fast.Cut("a:1", "b:1", "")
		go drain(b)
		for i := 0; a.Stats().Pauses == 0 && i < 50; i++ {
			one(t, w, a, b)
			time.Sleep(100 * time.Millisecond)
		}
	}
	add("a lossy path", "", nil, lossy, "hawser_path_errors_total{error=ack_timeout,transport=fast}",
		"hawser_path_pauses_total{transport=fast}", "hawser_paths{state=paused,transport=fast}", "hawser_events_total{event=path_paused}")
	add("a pause ends", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		lossy(t, w, a, b)
		time.Sleep(31 * time.Second)
	}, "hawser_events_total{event=path_resumed}")

	// Transports and events.
	add("a plugin comes back", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		w.fast.Kill("a:1")
		time.Sleep(5 * time.Second)
	}, "hawser_events_total{event=transport_up}", "hawser_events_total{event=transport_down}")
	add("a plugin is given up", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		for range 6 {
			w.fast.Kill("a:1")
			time.Sleep(5 * time.Second)
		}
	}, "hawser_events_total{event=transport_quarantined}")
	var talks atomic.Uint64
	add("a plugin talks nonsense", "", func(w *world) {
		c := w.configs["a:1"]
		c.Transports = w.hooked("a:1", func(*hooked) {})
		inner := c.Transports[0].InProcess
		c.Transports[0].InProcess = func() sdk.Transport { return &talking{inner().(*hooked), &talks} }
		w.configs["a:1"] = c
	}, func(t *testing.T, w *world, a, b *Engine) {
		talks.Add(3)
	}, "hawser_plugin_records_dropped_total{transport=fast}")
	add("a slow reader of events", "", nil, func(t *testing.T, w *world, a, b *Engine) {
		s := a.Events(context.Background())
		for range eventBuffer + 1 {
			a.hub.tell(Event{Kind: TransportUp})
		}
		s.Close()
	}, "hawser_events_lost_total")
	return list
}

// losing makes a node's first transport lose the first n copies of what is
// called lost.
func (w *world) losing(node string, n int) {
	var left atomic.Int64
	left.Store(int64(n))
	c := w.configs[node]
	c.Transports = w.hooked(node, func(h *hooked) {
		h.send = func(ep sdk.Endpoint, fs []sdk.Frame) (int, error) {
			kept := slices.DeleteFunc(slices.Clone(fs), func(f sdk.Frame) bool {
				return bytes.Contains(f.Data, []byte("lost")) && left.Add(-1) >= 0
			})
			if len(kept) == 0 {
				return len(fs), nil
			}
			taken, err := ep.Send(kept, false)
			if taken == len(kept) {
				taken = len(fs)
			}
			return taken, err
		}
	})
	w.configs[node] = c
}

// hooked makes a node's transports, the first of which f changes.
func (w *world) hooked(node string, f func(*hooked)) []TransportConfig {
	return []TransportConfig{
		{Name: "fast", InProcess: func() sdk.Transport {
			h := hook(w.fast.New(node))
			f(h)
			return h
		}},
		{Name: rpcFallbackName, InProcess: func() sdk.Transport { return w.slow.New(node) }},
	}
}

// talking is a transport that counts what it dropped, as a plugin's proxy does.
type talking struct {
	*hooked
	n *atomic.Uint64
}

func (t *talking) Dropped() uint64 { return t.n.Load() }

// outcome gives a's next frame to b:1 over fast an outcome.
func outcome(t *testing.T, w *world, a *Engine, c sdk.Completion) {
	t.Helper()
	w.fast.Cut("a:1", "b:1", "")
	d := w.notify(a, "b:1", "x")
	ep := connected(t, a, "fast")
	ep.a.mu.Lock()
	c.ID = ep.inflight.base
	ep.a.mu.Unlock()
	ep.Completed([]sdk.Completion{c})
	if err := w.wait(d); err != nil {
		t.Error(err)
	}
}

// stamped is a notification with this header.
func stamped(h frame.Header) []byte {
	h.Type = frame.NotifyCompat
	return h.Append(nil, frame.AppendRaw(nil, "x", nil))
}
