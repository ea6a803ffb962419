// Package benchnode measures notifications between two engines, each with its
// plugins in a process of its own. [RoundTrip], [Burst] and [Rate] measure with
// an engine whatever it runs in; [Run] starts two node processes for each round
// and measures between them; [ServeNode] is such a process.
//
// It measures itself and judges nothing: what to compare it with, and in which
// conditions, is the caller's.
package benchnode
