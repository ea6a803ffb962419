package remote

import (
	"errors"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// TestZeroMessages: what a plugin leaves out is zero, and converts without a
// panic.
func TestZeroMessages(t *testing.T) {
	if _, err := descriptionFromPB(nil); err == nil {
		t.Error("a description of nothing")
	}
	if s, err := setupFromPB(nil); err != nil || len(s.Attributes)+len(s.Paths) != 0 {
		t.Error(s, err)
	}
	if p, err := pathsFromPB(nil); err != nil || len(p) != 0 {
		t.Error(p, err)
	}
	if l, err := limitsFromPB(nil); err != nil || l != (sdk.Limits{}).WithDefaults() {
		t.Error(l, err)
	}
	if p := configToPB(sdk.Config{}, nil); len(p.GetIncarnation()) != 16 {
		t.Error(p)
	}
	if p := targetToPB(sdk.Target{}); len(p.GetLocal()) != 16 || len(p.GetPeer()) != 16 {
		t.Error(p)
	}
	if _, err := setupFromPB(&pb.ConfigureResponse{Paths: []*pb.LocalPath{nil}}); err != nil {
		t.Error(err)
	}
	if _, err := listenersFromPB([]*pb.ListenerSpec{nil}); err == nil {
		t.Error("a listener without a name")
	}
}

func TestCodesAreClosed(t *testing.T) {
	for n, want := range map[uint32]sdk.Code{
		0: sdk.Refused, 1: sdk.Unavailable, 16: sdk.OutcomeUnknown, 17: sdk.Refused,
		256 + 1: sdk.Refused, 1<<32 - 1: sdk.Refused,
	} {
		if got := codeFromPB(n); got != want {
			t.Errorf("%d: %v", n, got)
		}
	}
	if e := errorToPB(errors.New("plain")); e.GetCode() != uint32(sdk.Refused) {
		t.Error(e)
	}
}
