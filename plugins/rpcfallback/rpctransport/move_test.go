//go:build linux

package rpctransport

import (
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
)

func TestMoveEnds(t *testing.T) { rigtest.MoveEnds(t, New, 40) }

// A gibibyte, in small: 1.2 of them take as much.
func TestMoveFlat(t *testing.T) { rigtest.MoveFlat(t, New, 64<<20, 16<<20) }
