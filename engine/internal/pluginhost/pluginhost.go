// Package pluginhost runs transports: it launches plugin processes, verifies,
// supervises, restarts and replaces them, and hands the engine one
// [sdk.Transport] per instance. It is the only package of the engine that
// knows go-plugin. A fault of a plugin costs its transport, for a bounded
// time, and never the host.
package pluginhost

import (
	"context"
	"encoding/json"

	"github.com/hawser-transport/hawser/sdk"
)

// Spec says which transport to run and how.
type Spec struct {
	// Name is the configured name, for logs and status.
	Name string
	// Path is the plugin's binary. Unused with InProcess.
	Path string
	// SHA256 is the checksum, in hexadecimal, that the binary must have.
	// Empty means that none is known.
	SHA256 string
	// Settings is the user's config object; nil means {}.
	Settings json.RawMessage
	// Env adds variables to the plugin's environment allow-list.
	Env map[string]string
	// InProcess makes the transport inside this process, under the same
	// supervision.
	InProcess func() sdk.Transport
	// Keys lets the transport have [Options.Keys] if it asks for them.
	Keys bool
}

// Instance is one running, configured instance of a transport.
type Instance struct {
	ID          uint64
	Name        string
	Description sdk.Description
	Setup       sdk.Setup
	Transport   sdk.Transport
	// Notifier is nil if the transport cannot carry frames.
	Notifier sdk.Notifier
	// Mover is nil if the transport cannot move memory. It also makes the
	// endpoints for memory of one that carries no frames.
	Mover sdk.Mover
	// Gone is closed once nothing of the instance can touch memory any more:
	// its process has been reaped, or, in this process, its Close has said that
	// it is done. That may be after Down. It is never closed for a process that
	// does not die.
	Gone <-chan struct{}
	// Keyed says that the instance was given keys.
	Keyed bool
	// Ending is closed when an instance in this process has ended, or is about
	// to be closed: nothing of the engine's may keep its goroutines then. It is
	// nil for a process.
	Ending <-chan struct{}
}

// Observer learns what becomes of a transport. Its methods, but PathsChanged,
// are called one at a time and in order: Up, then perhaps Drain, then Down for
// each instance; a replacement's Up may precede the old one's Drain and Down.
type Observer interface {
	// Up: the instance can be used.
	Up(*Instance)
	// Drain asks to move traffic off the instance and returns when that is
	// done or ctx has ended. It alone may block.
	Drain(ctx context.Context, old *Instance)
	// Down: the instance is gone, all its endpoints have ended. err is nil
	// after an orderly stop.
	Down(old *Instance, err error)
	// PathsChanged: what the transport's Paths answers has changed. It may be
	// called at any time, also for an instance that is not up yet or no more,
	// and returns at once.
	PathsChanged()
	// Quarantined: the crash budget is used up, or starting again soon cannot
	// help (no such device, a wrong checksum). It is called again when an
	// attempt out of quarantine has failed.
	Quarantined(err error)
}
