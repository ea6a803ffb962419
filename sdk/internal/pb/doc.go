// Package pb holds the wire format of the control channel between an engine and
// a plugin, plugin.proto, and what `go run ./test/protogen` makes of it.
package pb
