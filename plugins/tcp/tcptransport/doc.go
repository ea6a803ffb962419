// Package tcptransport carries frames and moves host memory over TCP: one
// connection per endpoint, both directions on it, for the one or the other.
//
// The connecting side sends an offer over the engines' control plane, dials
// the address in the answer and presents both sides' tokens; the accepting
// side gives the connection to the endpoint that expects them. A frame's
// outcome is Done when the peer's end has handed it to its handler and said so
// in a receipt; a local write says nothing.
//
// A quiet endpoint writes in the goroutine that sends, without ever blocking
// it; a busy one hands over to a goroutine that writes whatever has come
// together. An idle endpoint holds no buffers.
//
// A connection for memory carries ops straight between the socket and the
// mapped regions, as package transfer says.
//
// The transport does not encrypt, never reconnects, resends or reorders, and
// trusts nothing that comes from a socket.
package tcptransport
