// Package health decides whom to call and which way to take, from what became
// of earlier calls and frames. It keeps apart two kinds of
// trouble that never stand in for each other:
//
//   - [Peers]: control planes that did not answer, by address. A mark makes
//     calls fail at once; the prober asks in the callers' stead.
//   - [Paths]: ways to a peer on which things go wrong. A pause sends traffic
//     over other ways.
//
// Everything here is a state machine without I/O, goroutines, timers or a
// clock: time is passed in, events are returned, and nobody is called. What is
// held is bounded. Nothing here is safe for concurrent use; the engine wraps
// it in a lock. Times may then arrive slightly out of order: an earlier one
// than the last counts as the last.
//
// It is not decided here who is dead (goodbye, another incarnation, a refused
// connection on the engine's port), nor in which order healthy ways are tried.
package health
