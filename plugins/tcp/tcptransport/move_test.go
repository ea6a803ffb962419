//go:build linux

package tcptransport

import (
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
)

func TestMoveEnds(t *testing.T) { rigtest.MoveEnds(t, New, 60) }

// A gibibyte, in small.
func TestMoveFlat(t *testing.T) { rigtest.MoveFlat(t, New, 128<<20, 8<<20) }
