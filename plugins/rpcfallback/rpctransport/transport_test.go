package rpctransport

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
	"github.com/hawser-transport/hawser/plugins/internal/streams"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLoad(t *testing.T)           { rigtest.Load(t, New, 400, 1<<20) }
func TestCycles(t *testing.T)         { rigtest.Cycles(t, New, 300) }
func TestSharedListener(t *testing.T) { rigtest.SharedListener(t, streams.ListenerName, New) }

func Benchmark(b *testing.B)     { rigtest.Bench(b, Name, New) }
func BenchmarkMove(b *testing.B) { rigtest.BenchMove(b, Name, New) }

func TestIdentities(t *testing.T) { rigtest.Identities(t, New) }
