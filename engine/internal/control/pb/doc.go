// Package pb holds the control plane's wire format, control.proto, and what
// `go run ./test/protogen` makes of it.
package pb
