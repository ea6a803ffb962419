// Package verbs is the small part of RDMA verbs that the rdma transport needs:
// reliable-connected queue pairs with a shared receive queue, completion
// queues with event channels, memory regions, and a device's asynchronous
// events.
//
// It is an interface with two implementations. Package ibverbs speaks to
// libibverbs.so.1, opened at run time. Package simverbs is a strict simulation
// with the same semantics, across processes, for tests and for machines
// without a device.
//
// The interface keeps verbs' names and verbs' rules, so that whoever knows the
// one knows the other: completions of a queue come in order, a queue pair in
// the error state flushes, one that is moved to RESET drops its completions,
// objects are destroyed before what they were made of. What an implementation
// refuses, it refuses with an [Errno].
//
// Concurrency: all methods may be called from several goroutines, except that
// an object's Close runs after every other call on it has returned.
package verbs
