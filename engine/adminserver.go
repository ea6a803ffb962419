package engine

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/net/netutil"

	"github.com/hawser-transport/hawser/engine/admin"
	"github.com/hawser-transport/hawser/sdk"
)

const (
	// maxAdminConns bounds the connections of each interface, against a
	// client that opens them and says nothing.
	maxAdminConns = 64
	// adminTimeout is how long a client may take to ask, and to read.
	adminTimeout = 10 * time.Second
	// restartLimit bounds a restart that was asked for.
	restartLimit = 2 * time.Minute
	// adminStop is how long calls may go on when the engine closes.
	adminStop = time.Second
	// defaultPeers is how many peers an answer lists unless it was asked for
	// more.
	defaultPeers = 1000
)

// adminServers are the admin interfaces of an engine.
type adminServers struct {
	socket  *socketFile  // nil: off
	http    net.Listener // nil: off
	servers []*http.Server
	once    sync.Once
	running sync.WaitGroup
}

// listenAdmin binds what is configured.
func listenAdmin(c AdminConfig) (*adminServers, error) {
	s := &adminServers{}
	var err error
	if c.Socket != "" && c.Socket != adminOff {
		if s.socket, err = listenSocket(c.Socket); err != nil {
			return nil, err
		}
	}
	if c.HTTP != "" {
		if s.http, err = listenHTTP(c.HTTP); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

func (s *adminServers) serve(e *Engine) {
	if s.socket != nil {
		s.start(e, s.socket, adminHandler(e), 2*restartLimit)
		e.log.Info("admin socket", "path", s.socket.path)
	}
	if s.http != nil {
		s.start(e, s.http, Handler(e), 3*adminTimeout)
		e.log.Info("health, metrics and status", "address", s.http.Addr().String())
	}
}

func (s *adminServers) start(e *Engine, l net.Listener, h http.Handler, write time.Duration) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: adminTimeout, ReadTimeout: adminTimeout, WriteTimeout: write,
		IdleTimeout: 6 * adminTimeout, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return e.ctx },
	}
	s.servers = append(s.servers, srv)
	s.running.Go(func() { _ = srv.Serve(netutil.LimitListener(l, maxAdminConns)) })
}

// close ends them. Nothing is bound afterwards.
func (s *adminServers) close() {
	if s == nil {
		return
	}
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), adminStop)
		defer cancel()
		for _, srv := range s.servers {
			if srv.Shutdown(ctx) != nil {
				_ = srv.Close()
			}
		}
		// Those that never served, too.
		if s.socket != nil {
			_ = s.socket.Close()
		}
		if s.http != nil {
			_ = s.http.Close()
		}
		s.running.Wait()
	})
}

// AdminSocket is the path of the engine's admin socket, empty if it has none.
func (e *Engine) AdminSocket() string {
	if s := e.surface.admin.socket; s != nil {
		return s.path
	}
	return ""
}

// AdminHTTP is the address on which [Handler] is served, empty if none is
// configured.
func (e *Engine) AdminHTTP() string {
	if l := e.surface.admin.http; l != nil {
		return l.Addr().String()
	}
	return ""
}

// adminHandler is what the admin socket answers.
func adminHandler(e *Engine) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /node", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, adminNode(e)) })
	mux.HandleFunc("GET /peers", func(w http.ResponseWriter, r *http.Request) {
		limit := defaultPeers
		if text := r.FormValue("limit"); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil || n < 1 || n > admin.MaxPeers {
				refuse(w, sdk.Errorf(sdk.InvalidArgument, "limit must be 1 to %d, not %q", admin.MaxPeers, text))
				return
			}
			limit = n
		}
		answer(w, http.StatusOK, adminPeers(e, limit))
	})
	mux.HandleFunc("GET /mappings", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, adminMappings(e))
	})
	mux.HandleFunc("POST /mappings/retire", func(w http.ResponseWriter, r *http.Request) {
		n, err := e.RetireMappings(r.Context(), r.FormValue("peer"))
		if err != nil {
			refuse(w, err)
			return
		}
		answer(w, http.StatusOK, admin.Retired{Mappings: n, Unresolved: e.memory.unresolvedTo(r.FormValue("peer"))})
	})
	mux.HandleFunc("GET /transports", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, adminTransports(e))
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, statsJSON(e.Stats())) })
	mux.HandleFunc("POST /transports/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		adminRestart(e, w, r)
	})
	mux.Handle("/", Handler(e))
	return mux
}

func adminRestart(e *Engine, w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), restartLimit)
	defer cancel()
	name := r.PathValue("name")
	if e.closing.Load() {
		refuse(w, sdk.Errorf(sdk.Closed, "restart: the engine is closing"))
		return
	}
	if err := e.RestartTransport(ctx, name); err != nil {
		refuse(w, err)
		return
	}
	e.log.Info("transport restarted by request", "transport", name)
	for _, t := range adminTransports(e) {
		if t.Name == name {
			answer(w, http.StatusOK, t)
			return
		}
	}
	refuse(w, sdk.Errorf(sdk.Unavailable, "restart: transport %s was removed meanwhile", name))
}

// answer writes a value as JSON that people can read, too.
func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client went
}

func refuse(w http.ResponseWriter, err error) {
	f, status := admin.Failure{Error: err.Error()}, http.StatusServiceUnavailable
	if c := sdk.CodeOf(err); c.Valid() {
		f.Code = c.Error()
		if c == sdk.InvalidArgument {
			status = http.StatusBadRequest
		}
	}
	if errors.Is(err, context.DeadlineExceeded) {
		status = http.StatusGatewayTimeout
	}
	answer(w, status, f)
}

func adminNode(e *Engine) admin.Node {
	self := e.Self()
	r := readiness(e, nil)
	return admin.Node{
		Name: self.Name, Address: self.Address, Incarnation: self.Incarnation.String(),
		PID: os.Getpid(), Started: e.started, Ready: r.Ready, Reason: r.Reason,
	}
}

func adminPeers(e *Engine, limit int) admin.Peers {
	peers := e.Peers()
	list := admin.Peers{Total: len(peers), Peers: []admin.Peer{}}
	for _, p := range peers[:min(limit, len(peers))] {
		list.Peers = append(list.Peers, adminPeer(p))
	}
	return list
}

func adminPeer(p PeerStatus) admin.Peer {
	j := admin.Peer{
		Address: p.Address, Name: p.Name, Self: p.Self, Session: p.Session, HelloError: text(p.HelloError),
		Receiving: p.Receiving, Pending: p.Pending, Waiting: p.Waiting, Sent: p.Sent, Resend: p.Resend,
		OutboxBytes: p.OutboxBytes, Room: p.Room, RoomBytes: p.RoomBytes, Held: p.Held,
		Since: p.Since, Heard: p.Heard, UsablePaths: len(p.Usable()), Paths: []admin.Path{},
		Cooldowns: p.Cooldowns, SilentUntil: p.SilentUntil,
	}
	if !p.Incarnation.IsZero() {
		j.Incarnation = p.Incarnation.String()
	}
	if s := p.Segment; s != nil {
		j.Segment = &admin.Segment{
			Version: s.Version, Latest: s.Latest, Buffers: s.Buffers, Opens: s.Opens, Ops: s.Ops, Endpoints: s.Endpoints,
		}
	}
	for _, w := range p.Paths {
		j.Paths = append(j.Paths, admin.Path{
			Transport: w.Transport, Path: w.Path, State: w.State, Usable: w.Usable(), Since: w.Since,
			Instance: w.Instance, PeerInstance: w.PeerInstance, Generation: w.Generation, InFlight: w.InFlight,
			Pending: w.Pending, Retiring: w.Retiring, Trouble: w.Trouble, RetryAt: w.RetryAt,
			Pauses: w.Pauses, PausedUntil: w.PausedUntil,
		})
	}
	return j
}

func adminMappings(e *Engine) []admin.Mapping {
	list := []admin.Mapping{}
	for _, m := range e.Mappings() {
		side := "provider"
		if m.Consumer {
			side = "consumer"
		}
		list = append(list, admin.Mapping{
			Side: side, Peer: m.Peer, Incarnation: m.Incarnation.String(), Capability: m.Capability, Address: m.Address,
			Length: m.Length, State: m.State, Leases: m.Leases, Transports: m.Transports, Heard: m.Heard,
		})
	}
	return list
}

func adminTransports(e *Engine) []admin.Transport {
	list := []admin.Transport{}
	for _, t := range e.Transports() {
		list = append(list, admin.Transport{
			Name: t.Name, Wire: t.Wire, State: t.State, Since: t.Since, Instance: t.Instance, PID: t.PID,
			Version: t.Version, Carrier: t.Carrier, Restarts: t.Restarts, Downs: t.Downs, Quarantines: t.Quarantines,
			Abandoned: t.Abandoned, Dropped: t.Dropped, Listeners: t.Listeners, LastError: text(t.LastError), Stderr: t.Stderr,
		})
	}
	return list
}

// statsJSON is the counts by name, as in "dropped_full".
func statsJSON(s Stats) map[string]int64 {
	m := map[string]int64{}
	v := reflect.ValueOf(s)
	for i := range v.NumField() {
		f := v.Field(i)
		name := snake(v.Type().Field(i).Name)
		if f.CanUint() {
			m[name] = int64(f.Uint()) //nolint:gosec // counts do not come so far
		} else {
			m[name] = f.Int()
		}
	}
	return m
}

func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
