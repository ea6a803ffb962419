// Package enginetest lets programs outside package engine test whole systems
// of engines in one process and in fake time (testing/synctest): an in-memory
// control plane with faults, and options for what a test wants to choose.
// Transports in memory, with faults of their own, are in sdk/sdktest.
//
// It is for tests. Nothing in it is needed, or useful, in production.
package enginetest

import (
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/engine/internal/control"
	"github.com/hawser-transport/hawser/engine/internal/seam"
)

// Network is a control plane in memory. Messages are copied and checked as if
// they had crossed a wire. A call crosses two directions, the request's and
// the reply's, and each can be silenced or delayed on its own. It uses
// channels, mutexes and timers only, so that it runs in a synctest bubble, if
// it was made there. Its methods are safe for concurrent use.
type Network struct{ n *control.Network }

// NewNetwork makes a network without faults.
func NewNetwork() *Network { return &Network{control.NewNetwork()} }

// At returns the option with which engine.Open opens an engine at an address
// of this network. It is for one engine: the next life there takes another.
func (n *Network) At(address string) engine.Option {
	c := n.n.Carrier(address)
	return func(o *seam.Options) { o.Carrier = c }
}

// Alias makes another address lead to an address, as two names of one host do.
func (n *Network) Alias(alias, address string) { n.n.Alias(alias, address) }

// Silence holds back, or lets pass again, whatever goes from one address to
// another, one way.
func (n *Network) Silence(from, to string, on bool) { n.n.Silence(from, to, on) }

// Freeze holds back everything from and to an address, as SIGSTOP does. What
// was held goes on when the address is thawed, unless its caller has given up.
func (n *Network) Freeze(address string, on bool) { n.n.Freeze(address, on) }

// Refuse makes calls to an address fail as if nothing listened there.
func (n *Network) Refuse(address string, on bool) { n.n.Refuse(address, on) }

// Delay makes everything from one address to another take so long, one way.
func (n *Network) Delay(from, to string, d time.Duration) { n.n.Delay(from, to, d) }

// Vanish ends the engine at an address as SIGKILL would: its peers find nobody
// there, its own calls reach nobody, and the address is free for its next life.
// The engine itself does not know of it; close it without waiting.
func (n *Network) Vanish(address string) { n.n.Vanish(address) }

// Faults counts what became of messages, so that a test can prove that its
// fault fired.
type Faults struct {
	// Held counts requests and replies that met a silent or frozen direction.
	Held int
	// Refused counts calls that found nobody.
	Refused int
	// Delayed counts messages that were delayed.
	Delayed int
}

// Faults returns what has fired so far.
func (n *Network) Faults() Faults { return Faults(n.n.Faults()) }

// Incarnation makes the engine's incarnation a chosen one, so that a run can be
// repeated. The low half must not be zero, and no two lives may share one.
func Incarnation(i engine.Incarnation) engine.Option {
	return func(o *seam.Options) { o.Incarnation = i }
}

// LongestDeadline makes d the longest deadline of a notification, 600 s
// outside tests. A sender that has sent nothing for so long replaces its
// session, and twice that is the silence after which a receiver forgets one:
// every engine of a system needs the same.
func LongestDeadline(d time.Duration) engine.Option {
	return func(o *seam.Options) { o.Longest = d }
}
