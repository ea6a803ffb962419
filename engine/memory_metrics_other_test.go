//go:build !linux

package engine

// memoryCases is empty: only Linux has such memory.
func memoryCases() []metricCase { return nil }
