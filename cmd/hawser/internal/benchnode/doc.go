// Package benchnode measures notifications and transfers between two engines,
// each with its plugins in a process of its own. [RoundTrip], [Burst], [Rate] and
// [Move] measure with an engine whatever it runs in; [Run] and [RunMove] start
// two node processes for each round and measure between them; [ServeNode] is such
// a process.
//
// It measures and judges nothing: what is compared in which conditions is the
// caller's. Only transfers have a plain program beside them, which copies the
// same bytes over one TCP connection.
package benchnode
