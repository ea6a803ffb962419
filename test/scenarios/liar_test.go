//go:build linux

package scenarios

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-transport/hawser/engine"
)

// liarConfig makes tcp a liar that keeps account in a file.
func liarConfig(t *testing.T, name string) (cfg engine.Config, ledger string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ledger = filepath.Join(t.TempDir(), name)
	cfg = config(name)
	cfg.Transports = []engine.TransportConfig{{
		Name: "tcp", Plugin: exe, Env: map[string]string{roleVariable: "liar", ledgerVariable: ledger},
	}, {Name: "rpcfallback"}}
	return cfg, ledger
}

// lies counts a ledger's lines.
func lies(t *testing.T, ledger string) map[string]int {
	t.Helper()
	b, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for line := range strings.Lines(string(b)) {
		counts[strings.TrimSpace(line)]++
	}
	return counts
}

// logBook keeps what an engine logs.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Scenarios 59 and 60: both ends' tcp plugin lies about everything that can be
// found out, and prints rubbish.
func TestScenario59And60LyingPlugin(t *testing.T) {
	const least = 2000
	book := &logBook{}
	logger := engine.WithLogger(slog.New(slog.NewTextHandler(book, nil)))
	senderConfig, senderLedger := liarConfig(t, "sender")
	receiverConfig, receiverLedger := liarConfig(t, "receiver")
	sender, receiver := open(t, senderConfig, logger), open(t, receiverConfig, logger)
	l := sender.stream(t, receiver.address(), "load")
	until(t, "every end to be made up", func() bool {
		return l.sent.Load() >= least && lies(t, senderLedger)["end made up"] == connectorsEnds && lies(t, receiverLedger)["end made up"] == acceptorsEnds
	})
	// All that it cost: tcp carries again without anybody's help.
	over := receiver.inbox.over()["tcp"]
	until(t, "tcp to carry again", func() bool { return receiver.inbox.over()["tcp"] > over+50 })
	count := l.end(t)
	receiver.inbox.expect(t, map[string]int{"load": count})

	told := []map[string]int{lies(t, senderLedger), lies(t, receiverLedger)}
	t.Logf("the sender's liar: %v\nthe receiver's: %v\narrived over %v", told[0], told[1], receiver.inbox.over())
	for _, lie := range []string{"completed twice", "unknown completed", "noise received", "stamp forged", "received twice", "end made up", "rubbish printed"} {
		if told[0][lie]+told[1][lie] == 0 {
			t.Errorf("nobody told this lie: %s", lie)
		}
	}
	s, r := sender.Stats(), receiver.Stats()
	for what, n := range map[string]uint64{
		"malformed": r.Malformed, "out of range": r.OutOfRange, "wrong life": r.WrongLife, "unknown session": r.UnknownSession,
		"foreign acks": r.ForeignAcks, "duplicates": r.Duplicates, "malformed at the sender": s.Malformed, "foreign acks at the sender": s.ForeignAcks,
	} {
		if n == 0 {
			t.Errorf("%s: none was counted", what)
		}
	}
	if log := book.String(); !strings.Contains(log, "more bytes)") || !strings.Contains(log, `\\xff`) {
		t.Error("the log does not have the rubbish in a safe form")
	}
	for _, n := range []*node{sender, receiver} {
		if fallback := n.transport(t, "rpcfallback"); fallback.State != "up" || fallback.Restarts != 0 {
			t.Errorf("%s: it cost the other transport: %+v", n.Self().Name, fallback)
		}
	}
}
