// Package libcuda speaks to GPUs through the CUDA driver's library,
// libcuda.so.1.
//
// The library is opened by the first call and never linked, so that one binary
// starts on machines without it, with and without cgo; there every call answers
// a [cuda.MissingError]. No header is needed: the functions' types and the few
// structs are declared here, by the names that the driver's header maps its
// functions to (cuMemAlloc is cuMemAlloc_v2). Builds for other systems than
// Linux on amd64 and arm64 have the same constructor and always miss it.
package libcuda
