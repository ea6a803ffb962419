// Package admin is what an engine's admin socket says, and a client for it.
// The socket is a unix socket of mode 0600 that speaks HTTP with JSON: GET
// /node, /peers, /mappings, /transports and /stats, POST
// /transports/NAME/restart and /mappings/retire, and all that the engine's
// status handler has. Which engines have one is up to the configuration key
// admin.socket.
//
// The package knows nothing of the engine; programs that only look at one
// need no more than this.
package admin

import "time"

// Node is an engine.
type Node struct {
	Name        string `json:"name"`
	Address     string `json:"address"`
	Incarnation string `json:"incarnation"`
	// PID and Started are those of its process.
	PID     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// Ready tells whether it can carry notifications; Reason why not.
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
}

// Peers are the peers of an engine; there may be more than the list has.
type Peers struct {
	Total int    `json:"total"`
	Peers []Peer `json:"peers"`
}

// Peer is what an engine holds of one peer.
type Peer struct {
	Address     string `json:"address"`
	Name        string `json:"name,omitempty"`
	Incarnation string `json:"incarnation,omitempty"`
	Self        bool   `json:"self,omitempty"`
	Session     string `json:"session"`
	HelloError  string `json:"hello_error,omitempty"`
	// Cooldowns is which cooldown in a row the mark of a silent peer is in,
	// which ends at SilentUntil; 0 if it is not marked.
	Cooldowns   int       `json:"cooldowns,omitempty"`
	SilentUntil time.Time `json:"silent_until,omitzero"`
	Receiving   bool      `json:"receiving"`
	Pending     int       `json:"pending"`
	Waiting     int       `json:"waiting"`
	Sent        int       `json:"sent"`
	Resend      int       `json:"resend"`
	OutboxBytes int       `json:"outbox_bytes"`
	Room        int       `json:"room"`
	RoomBytes   uint64    `json:"room_bytes"`
	Held        bool      `json:"held"`
	Since       time.Time `json:"since"`
	Heard       time.Time `json:"heard,omitzero"`
	UsablePaths int       `json:"usable_paths"`
	Paths       []Path    `json:"paths"`
	// Segment is what the peer publishes of its memory, if it was read.
	Segment *Segment `json:"segment,omitempty"`
}

// Segment is a peer's memory as far as an engine knows it.
type Segment struct {
	// Version is the descriptor's that was read, Latest the latest one's.
	Version uint64 `json:"version"`
	Latest  uint64 `json:"latest"`
	Buffers int    `json:"buffers"`
	// Opens counts open handles, Ops ops that are under way.
	Opens int `json:"opens"`
	Ops   int `json:"ops"`
	// Endpoints are the connected ones for memory, by transport and path.
	Endpoints []string `json:"endpoints,omitempty"`
}

// Mapping is a region of one engine's as another one uses it.
type Mapping struct {
	// Side is "consumer" if the engine asked uses the peer's region, or
	// "provider" if the peer has not given up the engine's, which is withdrawn.
	Side        string `json:"side"`
	Peer        string `json:"peer"`
	Incarnation string `json:"incarnation"`
	Capability  string `json:"capability"` // its beginning
	Address     uint64 `json:"address"`
	Length      uint64 `json:"length"`
	// State is used, idle, unresolved, leaving or held.
	State      string    `json:"state"`
	Leases     int       `json:"leases"`
	Transports []string  `json:"transports,omitempty"`
	Heard      time.Time `json:"heard,omitzero"`
}

// Retired is how many mappings an operator's word ended, and how many ops to
// the peer are unresolved, which it does not end.
type Retired struct {
	Mappings   int `json:"mappings"`
	Unresolved int `json:"unresolved"`
}

// Path is one way to a peer.
type Path struct {
	Transport    string    `json:"transport"`
	Path         string    `json:"path"`
	State        string    `json:"state"`
	Usable       bool      `json:"usable"`
	Since        time.Time `json:"since,omitzero"`
	Instance     uint64    `json:"instance"`
	PeerInstance uint64    `json:"peer_instance"`
	Generation   uint64    `json:"generation"`
	InFlight     int       `json:"in_flight"`
	Pending      int       `json:"pending"`
	Retiring     int       `json:"retiring,omitempty"`
	Trouble      string    `json:"trouble,omitempty"`
	RetryAt      time.Time `json:"retry_at,omitzero"`
	// Pauses counts the pauses in a row, without a success since; the one that
	// runs, if one does, ends at PausedUntil.
	Pauses      int       `json:"pauses,omitempty"`
	PausedUntil time.Time `json:"paused_until,omitzero"`
}

// Transport is one configured transport.
type Transport struct {
	Name        string            `json:"name"`
	Wire        string            `json:"wire,omitempty"`
	State       string            `json:"state"`
	Since       time.Time         `json:"since"`
	Instance    uint64            `json:"instance,omitempty"`
	PID         int               `json:"pid,omitempty"`
	Version     string            `json:"version,omitempty"`
	Carrier     string            `json:"carrier,omitempty"`
	Restarts    uint64            `json:"restarts"`
	Downs       uint64            `json:"downs"`
	Quarantines uint64            `json:"quarantines"`
	Abandoned   int               `json:"abandoned,omitempty"`
	Dropped     uint64            `json:"dropped_records"`
	Listeners   map[string]string `json:"listeners,omitempty"`
	LastError   string            `json:"last_error,omitempty"`
	Stderr      []string          `json:"stderr,omitempty"`
}

// Ready is what /readyz says: whether the engine can carry notifications, and
// over what.
type Ready struct {
	Ready  bool   `json:"ready"`
	Reason string `json:"reason,omitempty"`
	// Transports has each configured transport's state.
	Transports []ReadyTransport `json:"transports"`
	// Peers are the first hundred that something is sent to, those without a
	// usable path before the others; PeersTotal and PeersWithoutPath count
	// all.
	PeersTotal       int         `json:"peers_total"`
	PeersWithoutPath int         `json:"peers_without_path"`
	Peers            []ReadyPeer `json:"peers"`
}

// ReadyTransport is a transport's state.
type ReadyTransport struct {
	Name      string    `json:"name"`
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	LastError string    `json:"last_error,omitempty"`
}

// ReadyPeer is a peer and the paths by which it can be reached now.
type ReadyPeer struct {
	Address string   `json:"address"`
	Name    string   `json:"name,omitempty"`
	Usable  []string `json:"usable"`
	Pending int      `json:"pending"`
	Trouble string   `json:"trouble,omitempty"`
	// Cooldowns, SilentUntil: see Peer. Paused are the paths that are skipped.
	Cooldowns   int           `json:"cooldowns,omitempty"`
	SilentUntil time.Time     `json:"silent_until,omitzero"`
	Paused      []ReadyPaused `json:"paused,omitempty"`
	// Down are those that a side's transport does not list now.
	Down []string `json:"down,omitempty"`
}

// ReadyPaused is a path that is skipped until a time, for the Pauses-th time in
// a row.
type ReadyPaused struct {
	Path   string    `json:"path"`
	Until  time.Time `json:"until"`
	Pauses int       `json:"pauses"`
}

// Failure is an answer that is an error.
type Failure struct {
	Error string `json:"error"`
	// Code is the engine's code, such as "invalid argument".
	Code string `json:"code,omitempty"`
}
