//go:build linux

// Package mnnvltransport moves memory between GPUs over NVLink: between those of
// a machine, and between machines whose GPUs are of one NVLink fabric.
//
// It carries no frames. The remote side of an op is a peer's device memory, the
// local side device or host memory. This process copies: it maps the peer's
// memory and its own application's, and gives the copy to the GPU whose the
// local side is. The peer's plugin takes no part, and so nothing of an op is
// left once the copy has ended, which is what Ended says.
//
// Memory comes as an exported handle, and goes to peers as the same: a fabric
// handle as bytes, within the clique and the machine; a CUDA IPC handle as
// bytes, within the machine; a file descriptor over a unix socket of the
// provider's plugin, within the machine, to a process of the same user that
// knows the capability. Imports are kept by package mapping, one cache for each
// device, and the copy holds a lease of both sides until it has ended.
//
// Each device has one thread that makes its copies ([worker]); imports have
// another. An endpoint has a connection that carries nothing: its end is the
// peer's end.
//
// What it cannot do: check a peer's permission at each access, since no one is
// asked; a capability is checked when its memory is imported, and by the
// consumer at each op.
package mnnvltransport
