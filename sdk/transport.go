package sdk

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"net"
)

// ContractVersion is the version of this contract. An engine runs plugins of
// its own version only; a change that an older peer cannot ignore raises it.
const ContractVersion = 1

// Transport is what every transport implements.
//
// The engine calls Describe at any time, Configure once, then the abilities,
// then Close once, after which it calls nothing. Except where said otherwise
// methods are called concurrently. A method that takes a context returns
// soon after the context ends.
type Transport interface {
	// Describe says what this transport is. It must not touch hardware, open
	// anything or fail: it also runs on machines without the device.
	Describe() Description

	// Configure opens devices and listeners, and says how peers can reach
	// them. Missing hardware is an error with code [Unsupported] that names
	// what is missing and what to do. The engine calls it once, before any
	// ability, and on error calls only Close.
	Configure(ctx context.Context, cfg Config) (Setup, error)

	// Close ends every endpoint and releases everything. After it returns no
	// [Handler] method is called any more. It is idempotent: a call after one
	// that has failed, since its context was too short, waits for what is left.
	Close(ctx context.Context) error
}

// Feature names an optional ability. A type assertion does not cross a
// process, so a transport lists its abilities in [Description.Features]; the
// engine uses an ability only if it is both listed and implemented. Numbers
// are frozen.
type Feature uint16

const (
	// FeatureNotify: the transport implements [Notifier].
	FeatureNotify Feature = 1
	// FeatureProbe: the transport implements [Prober].
	FeatureProbe Feature = 2
	// FeatureDrain: the transport implements [Drainer].
	FeatureDrain Feature = 3
	// FeatureMove: the transport implements [Mover].
	FeatureMove Feature = 4
	// FeatureHandover is reserved for stream-socket transports that give the
	// engine their raw connected sockets.
	FeatureHandover Feature = 5
	// FeatureKeys: the transport implements [Keyed] and secures its connections
	// with [Config.Keys] if it gets any.
	FeatureKeys Feature = 6
)

// String returns the feature's name.
func (f Feature) String() string {
	switch f {
	case FeatureNotify:
		return "notify"
	case FeatureProbe:
		return "probe"
	case FeatureDrain:
		return "drain"
	case FeatureMove:
		return "move"
	case FeatureHandover:
		return "handover"
	case FeatureKeys:
		return "keys"
	default:
		return "feature-" + itoa(int(f))
	}
}

// Description says what a transport is and can do. It is constant for one
// build of a transport.
type Description struct {
	// Name is the transport's name on the wire: two engines use a transport
	// together if both run one of this name. 1 to 32 of [a-z0-9-].
	Name string
	// Version is the build's version, for people.
	Version string
	// Contract is the [ContractVersion] that the transport was built with.
	Contract int
	// Features lists the abilities.
	Features []Feature
	// Limits bounds what the engine may ask for.
	Limits Limits
	// Move bounds what the engine may ask of a Mover. It counts with
	// FeatureMove only.
	Move MoveLimits
	// ConfigSchema is a JSON schema (2020-12) of the object that the user
	// writes under the transport's `config` key. Empty means: no settings.
	ConfigSchema json.RawMessage
	// SharedDevice says that two instances of the transport may use the
	// device at the same time, so that a replacement can be started before
	// the old one has stopped.
	SharedDevice bool
	// Listeners are the stream sockets that the transport wants to be given.
	Listeners []ListenerSpec
}

// Has reports whether the description lists the feature.
func (d Description) Has(f Feature) bool {
	for _, g := range d.Features {
		if g == f {
			return true
		}
	}
	return false
}

// Limits bounds what the engine gives to one endpoint. Zero means the
// documented default.
type Limits struct {
	// MaxFrame is the largest frame in bytes. Default 65,536, at most
	// [MaxFrameLimit].
	MaxFrame int
	// InflightFrames is how many frames of one endpoint may be without an
	// outcome at a time. Default 1024. The engine holds back more.
	InflightFrames int
	// InflightBytes is the same bound in bytes; one frame of any allowed size
	// always fits. Default 4 MiB.
	InflightBytes int
}

// MaxFrameLimit is the largest [Limits.MaxFrame] in bytes: the largest
// payload that configuration allows (16 MiB by default) and room for headers.
const MaxFrameLimit = 16<<20 + 64<<10

// WithDefaults returns l with zero fields replaced by their defaults.
func (l Limits) WithDefaults() Limits {
	if l.MaxFrame == 0 {
		l.MaxFrame = 65536
	}
	if l.InflightFrames == 0 {
		l.InflightFrames = 1024
	}
	if l.InflightBytes == 0 {
		l.InflightBytes = 4 << 20
	}
	return l
}

// ListenerSpec asks the engine for a listening stream socket. The engine
// opens it, keeps it open across restarts of the transport, and lends it to
// each instance, so that an address survives and two instances can share it
// during a replacement.
type ListenerSpec struct {
	// Name is the key in [Config.Listeners].
	Name string
	// Key is the property of the user's config object that holds the address
	// to listen on, "host:port".
	Key string
	// Default is the address if the user names none.
	Default string
}

// Config is what the engine hands to one instance of a transport.
type Config struct {
	// Instance is unique among all instances of transports that this engine
	// ever starts, and grows. It is part of every id and attribute that an
	// instance publishes.
	Instance uint64
	// Incarnation is the engine's own.
	Incarnation Incarnation
	// Settings is the user's config object, valid under the transport's
	// ConfigSchema. Never nil: "{}" if the user wrote none.
	Settings json.RawMessage
	// Listeners holds one socket per [ListenerSpec], by name. The transport
	// closes them. Missing ones (a link without file descriptors) are the
	// transport's to open at the address in Settings, or the spec's default.
	Listeners map[string]net.Listener
	// Keys secure the transport's connections. Nil means that they are not
	// secured: no TLS is configured, the transport does not list FeatureKeys,
	// or the user does not let it have any.
	Keys *Keys
	// Log is where the transport writes. Never nil.
	Log *slog.Logger
	// PathsChanged tells the engine that [Notifier.Paths] answers otherwise
	// than before: a port has lost its link, or got it back. Never nil. A
	// transport whose paths can come and go calls it after every such change,
	// once Paths answers the new way; one that does not know when they do lets
	// endpoints and Connect fail instead, which counts against the path.
	//
	// The engine asks Paths anew. A path that is missing gets nothing any more
	// and is no failure; the transport ends those of its endpoints that can
	// carry nothing. One that is back is connected again at once.
	//
	// It returns at once, may be called from any goroutine, as often as one
	// likes, from the call of Configure on, and does nothing after Close.
	PathsChanged func()
}

// Attributes are what a transport publishes so that peers' transports of the
// same name can reach it: addresses, device names, keys. At most 64 entries
// and 16 KiB in all. The engine carries them as they are.
type Attributes map[string]string

// Setup is Configure's answer.
type Setup struct {
	// Attributes are published to peers with the instance.
	Attributes Attributes
	// Paths lists the local ends, for people (doctor, status pages).
	Paths []LocalPath
}

// LocalPath describes one local end of a transport: a device's port, a
// listening address.
type LocalPath struct {
	Name   string
	Detail string
}

// Incarnation is the identity of one life of an engine: 128 random bits drawn
// when it opens, never with a zero low half.
type Incarnation [16]byte

// String returns the incarnation in hexadecimal.
func (i Incarnation) String() string { return hex.EncodeToString(i[:]) }

// Short returns the first eight hexadecimal digits, for logs.
func (i Incarnation) Short() string { return hex.EncodeToString(i[:4]) }

// IsZero reports whether the incarnation is unset.
func (i Incarnation) IsZero() bool { return i == Incarnation{} }

// Epoch is the incarnation's low 64 bits, as they stand in frames: the last
// eight bytes, little endian.
func (i Incarnation) Epoch() uint64 {
	var e uint64
	for k := 0; k < 8; k++ {
		e |= uint64(i[8+k]) << (8 * k)
	}
	return e
}

// Less orders incarnations, to break ties the same way at both ends.
func (i Incarnation) Less(j Incarnation) bool {
	for k := range i {
		if i[k] != j[k] {
			return i[k] < j[k]
		}
	}
	return false
}

// Prober is the ability to ask whether a path is alive, now.
type Prober interface {
	// Probe returns nil if the peer's end of the path answered before ctx
	// ended. The engine keeps at most one probe per path under way.
	Probe(ctx context.Context, t Target) error
}

// Drainer is the ability to stop taking new work ahead of a replacement.
type Drainer interface {
	// Drain makes the instance stop accepting connections and refuse further
	// Connect and Accept calls with [Closed]; endpoints go on. It must not
	// close a listener in a way that ends the shared socket.
	Drain(ctx context.Context) error
}
