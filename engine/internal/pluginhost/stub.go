package pluginhost

import (
	"context"
	"log/slog"

	"github.com/hawser-transport/hawser/engine/internal/freeze"
	"github.com/hawser-transport/hawser/sdk"
)

func newProcesses(Options, *freeze.Detector) launcher { return nowhere{} }

type nowhere struct{}

func (nowhere) launch(context.Context, Spec, uint64, *slog.Logger) (process, error) {
	return nil, sdk.Errorf(sdk.Unsupported, "plugin processes need Linux")
}
func (nowhere) close() {}
