package sdk

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

func TestServerZeroMessages(t *testing.T) {
	if _, err := targetFromPB(nil); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	if _, err := configFromPB(nil); !errors.Is(err, InvalidArgument) {
		t.Error(err)
	}
	cfg, err := configFromPB(&pb.ConfigureRequest{Incarnation: make([]byte, 16)})
	if err != nil || string(cfg.Settings) != "{}" {
		t.Error(cfg, err)
	}
	if errorFromPB(nil) != nil || errorToPB(nil) != nil || coded(Refused, nil, "x") != nil {
		t.Error("no error became one")
	}
	if d := descriptionToPB(Description{}); d.GetLimits().GetMaxFrame() != 65536 {
		t.Error(d)
	}
}

func TestErrorsCross(t *testing.T) {
	tests := []struct {
		err  error
		code Code
	}{
		{Errorf(Busy, "x"), Busy},
		{fmt.Errorf("wrapped: %w", PeerRestarted), PeerRestarted},
		{errors.New("plain"), Refused},
		{Code(99), Refused},
		{context.DeadlineExceeded, DeadlineExceeded},
		{context.Canceled, DeadlineExceeded},
	}
	for _, tt := range tests {
		back := errorFromPB(errorToPB(tt.err))
		if !errors.Is(back, tt.code) || back.Error() != tt.err.Error() {
			t.Errorf("%v became %v", tt.err, back)
		}
	}
	if e := errorFromPB(&pb.Error{Code: 1 << 20}); !errors.Is(e, Refused) {
		t.Error(e)
	}
	if e := errorToPB(errors.New("a\xff" + strings.Repeat("ä", 3000))); !utf8.ValidString(e.GetMessage()) {
		t.Errorf("%q", e.GetMessage())
	}
	if e := errorToPB(errors.New(strings.Repeat("x", 10_000))); len(e.GetMessage()) != 4096 {
		t.Error(len(e.GetMessage()))
	}
}
