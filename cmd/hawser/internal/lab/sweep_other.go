//go:build !linux

package lab

// Sweep does nothing: nodes run on Linux only.
func Sweep() {}
