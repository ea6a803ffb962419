//go:build linux

package scenarios

import (
	"encoding/json"
	"testing"

	"github.com/hawser-transport/hawser/engine"
)

// Scenario 12, with plugins: what an engine sends to itself crosses none.
func TestScenario12ToOneself(t *testing.T) {
	n := open(t, config("self"))
	for _, r := range n.send(t, n.address(), "self", 200) {
		if r.Transport == "tcp" || r.Transport == "rpcfallback" {
			t.Fatalf("went over %s", r.Transport)
		}
	}
	n.inbox.expect(t, map[string]int{"self": 200})
	if over := n.inbox.over(); over["local"] != 200 {
		t.Errorf("arrived over %v", over)
	}
	if s := n.Stats(); s.Connects != 0 || s.Accepts != 0 || s.ConnectFailures != 0 {
		t.Errorf("endpoints were made: %+v", s)
	}
}

// Scenario 22: a peer without tcp, and one whose tcp refuses.
func TestScenario22NoTCPAtThePeer(t *testing.T) {
	cfg := config("receiver")
	cfg.Transports = []engine.TransportConfig{{Name: "rpcfallback"}}
	sender, receiver := open(t, config("sender")), open(t, cfg)
	if s := sender.transport(t, "tcp"); s.State != "up" {
		t.Fatalf("tcp is not up at the sender: %+v", s)
	}
	for _, r := range sender.send(t, receiver.address(), "without", 200) {
		if r.Transport != "rpcfallback" || r.Copies != 1 {
			t.Fatalf("got %+v", r)
		}
	}
	receiver.inbox.expect(t, map[string]int{"without": 200})
	if s := sender.Stats(); s.ConnectFailures != 0 {
		t.Errorf("%d vain attempts for a transport that the peer has not", s.ConnectFailures)
	}
}

func TestScenario22TCPRefused(t *testing.T) {
	// An address of its own, at which nobody listens.
	settings := json.RawMessage(`{"advertise": "127.0.7.4:1"}`)
	cfg := config("receiver")
	cfg.Transports = []engine.TransportConfig{{Name: "tcp", Config: settings}, {Name: "rpcfallback"}}
	sender, receiver := open(t, config("sender")), open(t, cfg)
	for _, r := range sender.send(t, receiver.address(), "refused", 200) {
		if r.Transport != "rpcfallback" {
			t.Fatalf("got %+v", r)
		}
	}
	receiver.inbox.expect(t, map[string]int{"refused": 200})
	if sender.Stats().ConnectFailures == 0 {
		t.Error("the refusal is not counted")
	}
}
