package engine

import (
	_ "embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/hawser-transport/hawser/engine/admin"
)

// Handler serves what can be seen of an engine; nothing in it changes one:
//
//	/healthz  200 as long as the process answers
//	/readyz   200 if notifications can be carried, else 503 with the reason; as JSON
//	/metrics  Prometheus, if the engine was opened WithMetrics
//	/         a page for people
//
// What they say names peers and files; it is for those who run the engine.
func Handler(e *Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		r := readiness(e, e.Peers())
		status := http.StatusOK
		if !r.Ready {
			status = http.StatusServiceUnavailable
		}
		answer(w, status, r)
	})
	if m := e.surface.metrics; m != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(m.gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: adminTimeout}))
	}
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) { servePage(w, e) })
	return mux
}

// maxReadyPeers is how many peers /readyz lists.
const maxReadyPeers = 100

// readiness tells whether the engine can carry notifications. A peer without a
// usable path does not make it unready: it may be the peer that is gone.
func readiness(e *Engine, peers []PeerStatus) admin.Ready {
	r := admin.Ready{Transports: []admin.ReadyTransport{}, Peers: []admin.ReadyPeer{}}
	up := false
	for _, t := range e.Transports() {
		up = up || t.State == "up"
		r.Transports = append(r.Transports, admin.ReadyTransport{
			Name: t.Name, State: t.State, Since: t.Since, LastError: text(t.LastError),
		})
	}
	switch {
	case e.closing.Load():
		r.Reason = "the engine is closing"
	case !up:
		r.Reason = "no transport is up"
	case !e.surface.started.Load():
		r.Reason = "the engine is starting"
	default:
		r.Ready = true
	}
	for _, p := range peers {
		if p.Self || len(p.Paths) == 0 && p.Pending == 0 {
			continue
		}
		j := admin.ReadyPeer{
			Address: p.Address, Name: p.Name, Usable: []string{}, Pending: p.Pending,
			Cooldowns: p.Cooldowns, SilentUntil: p.SilentUntil,
		}
		for _, w := range p.Paths {
			way := Attempt{Transport: w.Transport, Path: w.Path}.way()
			switch {
			case w.Usable():
				j.Usable = append(j.Usable, way)
			case w.State == PathDown:
				j.Down = append(j.Down, way)
			case w.State == PathInPause:
				j.Paused = append(j.Paused, admin.ReadyPaused{Path: way, Until: w.PausedUntil, Pauses: w.Pauses})
			}
		}
		r.PeersTotal++
		if len(j.Usable) == 0 {
			r.PeersWithoutPath++
			j.Trouble = p.trouble()
		}
		r.Peers = append(r.Peers, j)
	}
	slices.SortStableFunc(r.Peers, func(a, b admin.ReadyPeer) int {
		return min(len(a.Usable), 1) - min(len(b.Usable), 1)
	})
	r.Peers = r.Peers[:min(len(r.Peers), maxReadyPeers)]
	return r
}

// trouble is what went wrong last on the way to the peer.
func (p PeerStatus) trouble() string {
	for _, w := range p.Paths {
		if w.Trouble != "" {
			return Attempt{w.Transport, w.Path, w.Trouble}.String()
		}
	}
	return text(p.HelloError)
}

//go:embed page.html
var pageText string

// page is made once; it has no external assets.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"since": func(now, t time.Time) string {
		if t.IsZero() {
			return "never"
		}
		return now.Sub(t).Round(time.Second).String()
	},
	"until": func(now, t time.Time) string { return max(0, t.Sub(now)).Round(time.Second).String() },
	"text":  text,
	"way":   func(p PathStatus) string { return Attempt{Transport: p.Transport, Path: p.Path}.way() },
	"bytes": func(n int) string {
		for _, u := range []string{"B", "KiB", "MiB"} {
			if n < 10<<10 {
				return fmt.Sprintf("%d %s", n, u)
			}
			n >>= 10
		}
		return fmt.Sprintf("%d GiB", n)
	},
}).Parse(pageText))

// maxPagePeers is how many peers the page lists.
const maxPagePeers = 200

func servePage(w http.ResponseWriter, e *Engine) {
	peers := e.Peers()
	data := struct {
		Now        time.Time
		Self       Node
		Started    time.Time
		Ready      admin.Ready
		Transports []TransportStatus
		Peers      []PeerStatus
		More       int
		Stats      Stats
		Config     Config
		Metrics    bool
	}{
		Now: time.Now(), Self: e.Self(), Started: e.started, Ready: readiness(e, nil), Transports: e.Transports(),
		Peers: peers[:min(len(peers), maxPagePeers)], More: max(0, len(peers)-maxPagePeers),
		Stats: e.Stats(), Config: e.cfg, Metrics: e.surface.metrics != nil,
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	h.Set("X-Content-Type-Options", "nosniff")
	_ = page.Execute(w, data) // the client went
}
