// Package rdmatransport carries frames over RDMA, and moves host memory: a
// reliable-connected queue pair per endpoint, one shared receive queue per
// device.
//
// A frame is a SEND without immediate data. Its outcome is Done when the
// peer's device has acknowledged it into a receive buffer, and NotPosted only
// if it was never posted; every other completion, a flush included, says
// Unknown. SENDs with immediate data are the transport's own: see control.go.
//
// The paths to a peer are the pairs of a port here and a port there (package
// rail). Each device has one completion queue and one goroutine that polls it
// while there is work and sleeps on its channel otherwise. That goroutine hands
// over to endpoints' own goroutines, the only ones that call handlers, so that
// a handler that does not return holds up its own endpoint only: a peer may
// fill no more than its share of the receive buffers, which grants renew as the
// handler takes frames.
//
// An endpoint that ends stays published until its queue pair's completions are
// drained: what the peer's device was told has landed is handed over. Its
// number, which is unique only within its device and only for its life, is
// given to a successor's completions after that, never before.
//
// An endpoint for memory is such a queue pair, too. Its ops are reads and writes
// that the devices carry out alone, from region to region. What an op may do is
// checked against what was announced before it is posted; what the peer's
// device knows better ends the endpoint. Every region is registered with every
// device, and held by the ops that name it until the device is done with them.
// Ended follows the end of the queue pair, since only then neither device does
// anything for it. The keys of regions are those of one instance.
//
// The transport never reconnects, resends or reorders, and trusts nothing that
// comes from a peer.
package rdmatransport
