//go:build linux && cgo

package ibverbs

import (
	"fmt"
	"math/bits"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// portState is verbs' name of a port's state.
func portState(state int) string {
	names := [...]string{"nop", "down", "init", "armed", "active", "active defer"}
	if state < 0 || state >= len(names) {
		return fmt.Sprintf("state %d", state)
	}
	return names[state]
}

// gbps is the rate of a port from verbs' codes: lanes times signalling rate.
func gbps(width, speed int) float64 {
	lanes := map[int]float64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
	// SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR.
	rates := map[int]float64{1: 2.5, 2: 5, 4: 10, 8: 10, 16: 14, 32: 25, 64: 50, 128: 100}
	return lanes[width] * rates[speed]
}

// mtuOf and mtuCode are verbs' codes: 1 is 256 bytes, 5 is 4096.
func mtuOf(code uint32) verbs.MTU {
	if code < 1 || code > 5 {
		return 0
	}
	return 128 << code
}

func mtuCode(m verbs.MTU) uint32 { return uint32(bits.Len(uint(m))) - 8 }
