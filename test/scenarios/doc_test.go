// Package scenarios tests the whole system: real engines, real plugin
// processes, real faults. Each test proves that its fault fired, and when all
// have run no process, run directory or goroutine may be left.
//
// Tests use what embedders use: package engine, the built binaries, and the
// contract where a plugin has to be written. The test binary is also what the
// tests need as other processes: see role_test.go.
package scenarios
