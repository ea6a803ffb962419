//go:build !linux

package pluginhost

import (
	"context"
	"log/slog"
	"runtime"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

func newProcesses(Options, *freeze.Detector) launcher { return nowhere{} }

// nowhere is the launcher of platforms that have no pidfd, no sealed memfd and
// no parent-death signal.
type nowhere struct{}

func (nowhere) launch(context.Context, Spec, uint64, *slog.Logger) (process, error) {
	return nil, unsupported()
}

func (nowhere) close() {}

// Describe answers Unsupported.
func Describe(context.Context, string) (sdk.Description, error) {
	return sdk.Description{}, unsupported()
}

// Examine finds that there are no plugin processes here.
func Examine(context.Context, Spec, Options) (sdk.Description, []sdk.Finding) {
	return sdk.Description{}, []sdk.Finding{{Subject: "plugin", State: sdk.FindingProblem, Found: unsupported().Error()}}
}

// ExamineHost finds the same.
func ExamineHost(Options) []sdk.Finding {
	return []sdk.Finding{{Subject: "system", State: sdk.FindingProblem, Found: unsupported().Error()}}
}

func unsupported() error {
	return sdk.Errorf(sdk.Unsupported, "plugin processes need Linux 5.15 or later, this is %s", runtime.GOOS)
}
