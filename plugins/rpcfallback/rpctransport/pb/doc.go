// Package pb holds the wire format between two rpcfallback plugins,
// fallback.proto, and what `go run ./test/protogen` makes of it.
package pb
