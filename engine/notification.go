package engine

import (
	"github.com/hawser-transport/hawser/engine/internal/frame"
	"github.com/hawser-transport/hawser/sdk"
)

// Notification is what one process tells another.
type Notification struct {
	// Name says what it is about; any bytes.
	Name string
	// Payload is any bytes. Notify copies it.
	Payload []byte
}

// Incarnation is the identity of one life of an engine.
type Incarnation = sdk.Incarnation

// Node is an engine as its peers see it.
type Node struct {
	// Name is node.name; it need not be unique.
	Name string
	// Address is where the engine's control plane can be reached.
	Address string
	// Incarnation is this life's.
	Incarnation Incarnation
	// Identity is the names in the engine's certificate, which is all that is
	// vouched for: Name and Address are what it says of itself. Empty without
	// TLS, and in what [Engine.Self] returns.
	Identity string
}

// Stamp identifies a notification among all that one receiver's life gets:
// its sender's incarnation, session and sequence number.
type Stamp struct {
	Sender  Incarnation
	Session uint64
	Seq     uint64
}

// Received is a notification with where it came from.
type Received struct {
	Notification
	// From is the sender. It is shared and must not be changed.
	From *Node
	// Transport is the one that carried the copy that was first.
	Transport string
	// Stamp is zero if the sender stamps nothing (protocol 0).
	Stamp Stamp
}

// frameSize is the size in bytes of the typed frame that carries n.
func frameSize(n Notification) int { return frame.Overhead + len(n.Name) + len(n.Payload) }

// encode returns the frame for n with its header still to be written.
func encode(n Notification) []byte {
	b := make([]byte, frame.HeaderSize, frameSize(n))
	return frame.AppendRaw(b, n.Name, n.Payload)
}
