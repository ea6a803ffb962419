// Package ibverbs speaks to RDMA devices through libibverbs.so.1.
//
// The library is opened at run time and never linked, so that one binary
// starts on machines without it; there every call answers a
// [verbs.MissingError] that says what to install. What a build needs is the
// library's headers. Builds without cgo, and for other systems than Linux,
// have the same constructor and always miss it.
//
// Go's structs of work requests and completions are laid out as the shim's, so
// that one call into C posts or polls many without copying them in Go.
package ibverbs
