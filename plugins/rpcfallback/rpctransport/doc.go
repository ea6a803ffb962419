// Package rpctransport carries frames and moves host memory over gRPC: the last
// resort when nothing else works, and the way for payloads that are too large
// for the others.
//
// An endpoint is one bidirectional stream on a connection of its own. What is
// sent while a message is on its way is packed into the next one. A frame's
// outcome is Done when the peer's end has handed it to its handler and said so
// in a later message.
//
// An endpoint for memory is a stream of its own, on a connection of its own: see
// package transfer for what it carries.
//
// It is made to be steady rather than fast. It does not encrypt, and never
// reconnects, resends or reorders.
package rpctransport
