//go:build !linux

package pluginhost

import (
	"errors"
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestProcessesAreUnsupported(t *testing.T) {
	rec := newRecorder()
	s := New(Spec{Name: "t", Path: "/bin/true"}, Options{}, rec)
	s.Start()
	if err := s.Ready(t.Context()); !errors.Is(err, sdk.Unsupported) {
		t.Fatal(err)
	}
	if err := s.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}
