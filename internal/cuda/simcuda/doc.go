// Package simcuda is a strict simulation of the CUDA driver, for tests and for
// machines without a GPU. It runs on Linux.
//
// A [Driver] is one process on a virtual machine; drivers that name the same
// directory are on the same machine, in one process or several. Device memory
// is a memfd and its POSIX descriptor is that memfd's, so that an old mapping
// keeps the old bytes alive after the exporter has let go, as the real driver's
// does, and memory is free once the last process that holds it has gone, also
// by SIGKILL. Fabric and IPC handles are resolved through the directory, from
// the process that exported them, for as long as that lives.
//
// Numbers are used again as soon as they are free, the lowest first: addresses,
// handles, descriptors, and with them the bytes of IPC handles. Whoever takes
// one for an identity fails here.
//
// Where the real driver leaves something undefined the simulation takes the
// worst that may happen: an IPC mapping of freed memory poisons its bytes or
// loses the context, a copy whose memory was unmapped while it was in flight
// loses the context and is a fault. Every object is counted, every wrong order
// is refused or recorded ([Driver.Counts]), and any call can be made to fail
// ([Driver.Inject]).
//
// Copies run in the order of their stream, asynchronously, as slowly as
// [Options] say; [Hold] stops those of all processes until [Resume].
package simcuda
