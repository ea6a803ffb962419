// Package cuda helps an application that has CUDA device pointers to use them
// with an engine: it registers a GPU's memory by its pointer, and makes an event
// of the application's something that an op can wait for. Only programs that
// import it load the CUDA driver, which it opens at run time: no toolkit, no
// header and no linking.
//
//	gpus, err := cuda.Open()
//	region, err := gpus.Register(e, pointer, length, engine.RegionOptions{})
//	op.Event, err = gpus.ExportEvent(0, event)
//
// A program without CUDA code of its own can allocate a GPU's memory here, and
// copy bytes in and out of it: [GPUs.Allocate]. Kernels, streams and everything
// else are the application's.
//
// Transports are processes of their own, so memory has to be shareable.
// [GPUs.Register] exports it as the first of these that it was made for:
//
//	a fabric handle   cuMemCreate, with that type of handle   machines of one NVLink fabric
//	a descriptor      cuMemCreate, with that type of handle   this machine
//	CUDA IPC          cuMemAlloc, cudaMalloc                  this machine
//
// Managed memory, host memory and memory of a pool (cudaMallocAsync) are
// refused. A handle names an allocation, not an address: a region may begin and
// end anywhere in one, and lies in one alone. What is retained for an export is
// released, and its descriptor closed, before Register returns; what a region
// needs is the engine's. What the driver refuses to take back is tried again,
// with the next export and by [GPUs.Close].
//
// Pointers and events are those of the process's primary contexts, which the
// CUDA runtime uses, too. A device's is retained when it is used here first, and
// until [GPUs.Close]; memory of other contexts that cuMemCreate made will do.
//
// Only the transport mnnvl moves a GPU's memory: where that is not configured,
// or does not reach the peer's GPU, nothing else does.
//
// The environment variable HAWSER_CUDA_SIM is for tests: it names a file that
// describes a simulated machine, which is used in place of this one's GPUs.
package cuda
