// Package link is the hot path between the engine and one plugin process:
// frames, completions and received frames, as records over one of several
// carriers. Every carrier has the same guarantees: records arrive whole, in
// order and once, until the carrier ends; nothing is promised after that.
//
// What arrives is untrusted: a carrier checks lengths, types and flags, and
// ends with an error at the first violation. What a record means is checked by
// whoever reads it.
package link

import (
	"errors"
	"os"
)

// Type is a record's kind. Numbers are frozen.
type Type uint8

const (
	// Send carries one frame from the engine: Endpoint, ID, frame.
	Send Type = 1
	// Complete carries outcomes from the plugin: Endpoint, packed runs.
	Complete Type = 2
	// Received carries one frame from the plugin: Endpoint, frame.
	Received Type = 3
	// Ended says that an endpoint is gone: Endpoint, ID is an error code, the
	// payload its text. Nothing of that endpoint follows.
	Ended Type = 4
	// CloseEndpoint asks the plugin to end an endpoint.
	CloseEndpoint Type = 5
	// Ping asks for a Pong with the same ID once all records before it were
	// handled.
	Ping Type = 6
	// Pong answers a Ping.
	Pong Type = 7
	// Files carries file descriptors; ID is a tag the two ends agree on.
	Files Type = 8
	// Window moves the end of an endpoint's window: ID is how many bytes of
	// records of type Received, headers included, may have come in all. A
	// record may come while those before it are fewer. A lower number than
	// before changes nothing.
	Window Type = 9
	// Dropped says that the plugin had to drop ID frames of an endpoint,
	// because its window was closed.
	Dropped Type = 10
	// PathsChanged says that the plugin's Paths answers otherwise than before.
	PathsChanged Type = 11
)

// HeaderSize is the size in bytes of a record's header.
const HeaderSize = 24

// MaxFiles is how many descriptors one record may carry.
const MaxFiles = 16

// Record is one unit of the link. On the wire, little endian:
//
//	u32 payload length | u8 type | u8 flags (0) | u16 file count | u64 endpoint | u64 id | payload
type Record struct {
	Type     Type
	Endpoint uint64
	ID       uint64
	Payload  []byte
	// Files is set for type Files only. Send works with duplicates, so the
	// sender's stay the sender's. The receiver owns what Recv returned and
	// closes it.
	Files []*os.File
}

// Mode says how Send treats a record.
type Mode uint8

const (
	// More: the caller will soon send again or does not mind a few
	// microseconds; the carrier may wait for company.
	More Mode = 1 << iota
	// Wait: block until there is room, instead of failing with ErrFull.
	Wait
)

var (
	// ErrFull: the carrier's buffer has no room now.
	ErrFull = errors.New("link: no room")
	// ErrClosed: the carrier was closed here, or has ended.
	ErrClosed = errors.New("link: closed")
	// ErrInvalid: the record given to Send is not one that may be sent: over
	// the size limit, of an unknown type, or with files where none can go.
	// The carrier goes on.
	ErrInvalid = errors.New("link: invalid record")
	// ErrViolation: the other end broke the format. The carrier has ended,
	// and nothing more of it is read.
	ErrViolation = errors.New("link: violation")
)

// Carrier moves records between the two processes.
type Carrier interface {
	// Send queues records in order and returns how many were taken, copying
	// payloads. Without Wait it never blocks, and fails with ErrFull once
	// the bounded buffer is full; a record of any allowed size fits an empty
	// one. A record that was taken may still be lost if the carrier ends.
	// Safe for concurrent use.
	Send(recs []Record, mode Mode) (n int, err error)

	// Recv returns the next records, at least one, appended to dst. Payloads
	// are valid until the next call. One goroutine calls it. Its error is
	// final: io.EOF if the other end is gone, ErrClosed after Close, and what
	// was wrong for a violation.
	Recv(dst []Record) ([]Record, error)

	// Moved grows when the other end has sent something, or has read what it
	// had kept waiting: a sign of life also within a big record. That a write
	// was taken is none, as the kernel takes some for a process that is
	// stopped. Safe for concurrent use.
	Moved() uint64

	// CarriesFiles reports whether records of type Files can be sent.
	CarriesFiles() bool

	// Close ends the carrier and unblocks everything; what has not left yet
	// is dropped. Idempotent.
	Close() error
}
