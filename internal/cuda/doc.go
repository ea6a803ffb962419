// Package cuda is the small part of the CUDA driver that the mnnvl transport and
// applications with GPU memory (package engine/cuda) need: shareable device
// memory (virtual memory management and legacy IPC), streams, events, and copies.
//
// It is an interface with two implementations. Package libcuda speaks to
// libcuda.so.1, opened at run time. Package simcuda is a strict simulation with
// the same semantics, across processes, for tests and for machines without a
// GPU. Package cudatest is the table of tests that both pass, and package local
// chooses one for this process.
//
// The interface keeps the driver's rules. cuMemCreate, cuMemRetainAllocationHandle
// and cuMemImportFromShareableHandle each take a reference that one Release
// drops; a mapping holds the memory too; memory is free once both are gone.
// Unmap names the exact mapped range, and the range of addresses is freed after
// it. A shareable file descriptor is the caller's to close, whether it was
// exported or imported. An IPC mapping must be closed before the exporter frees
// the memory; what happens otherwise is undefined.
//
// [Allocate], [Export] and [Import] put those calls in order, once for both
// implementations, and give back what they took when one of the calls fails.
//
// Concurrency: a [Device] may be used by several goroutines. A [Context] is
// valid only inside the function that Do gave it to, on the device's thread.
package cuda
