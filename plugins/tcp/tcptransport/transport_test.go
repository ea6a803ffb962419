package tcptransport

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
	"github.com/hawser-transport/hawser/sdk"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func pair(t testing.TB) (a, b *rigtest.Node) {
	t.Helper()
	return rigtest.Start(t, New(), sdk.Config{Instance: 1}), rigtest.Start(t, New(), sdk.Config{Instance: 2})
}

func TestLoad(t *testing.T)           { rigtest.Load(t, New, 5000, maxFrame) }
func TestCycles(t *testing.T)         { rigtest.Cycles(t, New, 1000) }
func TestSharedListener(t *testing.T) { rigtest.SharedListener(t, streams.ListenerName, New) }

func Benchmark(b *testing.B)     { rigtest.Bench(b, Name, New) }
func BenchmarkMove(b *testing.B) { rigtest.BenchMove(b, Name, New) }
