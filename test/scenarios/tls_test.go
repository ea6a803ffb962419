//go:build linux

package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// secured is a configuration under TLS, and the directory of its keys.
func secured(t *testing.T, name string, k sdk.Keys) (engine.Config, string) {
	t.Helper()
	cfg, dir := config(name), t.TempDir()
	cfg.Security.CA, cfg.Security.Cert, cfg.Security.Key = sdktest.WriteKeys(t, dir, k)
	return cfg, dir
}

// everywhere makes an engine listen where other machines could reach it.
func everywhere(cfg engine.Config, transports ...string) engine.Config {
	cfg.Control = engine.ControlConfig{Listen: "0.0.0.0:0", Advertise: "127.0.0.1:1"}
	if len(transports) > 0 {
		cfg.Transports = nil
	}
	for _, name := range transports {
		cfg.Transports = append(cfg.Transports, engine.TransportConfig{
			Name: name, Config: []byte(`{"listen": "0.0.0.0:0", "advertise": "127.0.0.1"}`),
		})
	}
	return cfg
}

// failing sends one notification that must end within its deadline, saying
// why.
func (n *node) failing(t *testing.T, to, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	d, err := n.Notify(ctx, to, message("refused", 0))
	if err != nil {
		t.Fatal(err)
	}
	err = d.Wait(briefly(t))
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
}

// Two engines and their plugins under TLS: both transports carry, strangers
// are refused with a reason, changed certificates need no restart, and no
// plugin's environment holds a key.
func TestMutualTLS(t *testing.T) {
	ca, next := sdktest.NewAuthority(t, "ca"), sdktest.NewAuthority(t, "next")
	alice := ca.Issue("alice", nil)
	aliceConfig, aliceDir := secured(t, "a", alice)
	bobConfig, bobDir := secured(t, "b", ca.Issue("bob", nil))
	bobConfig.Security.Allow = []string{"alice"}
	a, b := open(t, aliceConfig), open(t, bobConfig)
	sent := map[string]int{"tcp": 500}
	for _, r := range a.send(t, b.address(), "tcp", 500) {
		if r.Transport != "tcp" || r.Copies != 1 {
			t.Fatalf("got %+v", r)
		}
	}

	fallback, _ := secured(t, "c", ca.Issue("alice", nil))
	fallback.Transports = []engine.TransportConfig{{Name: "rpcfallback"}}
	c := open(t, fallback)
	for _, r := range c.send(t, b.address(), "rpc", 100) {
		if r.Transport != "rpcfallback" {
			t.Fatalf("got %+v", r)
		}
	}
	sent["rpc"] = 100

	foreign, _ := secured(t, "d", next.Issue("alice", nil))
	open(t, foreign).failing(t, b.address(), "not signed by the configured CA")
	unknown, _ := secured(t, "e", ca.Issue("eve", nil))
	open(t, unknown).failing(t, b.address(), "the peer refused this node's certificate")
	plain := open(t, config("f"))
	plain.failing(t, b.address(), "the peer demands TLS")
	a.failing(t, plain.address(), "the peer does not use TLS")

	for _, pid := range append(pluginPIDs(a.Engine), pluginPIDs(b.Engine)...) {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil || bytes.Contains(env, []byte("PRIVATE")) || bytes.Contains(env, []byte(".pem")) {
			t.Errorf("plugin %d: %v, environment %q", pid, err, env)
		}
	}

	// Another authority, on both sides, while everything runs.
	before := a.transport(t, "tcp").Instance
	sdktest.WriteKeys(t, aliceDir, next.Issue("alice", nil))
	sdktest.WriteKeys(t, bobDir, next.Issue("bob", nil))
	latecomer, _ := secured(t, "g", next.Issue("alice", nil))
	g := open(t, latecomer)
	g.send(t, b.address(), "late", 50) // hello is repeated until b has read its new files
	sent["late"] = 50
	until(t, "tcp to carry for the new authority", func() bool {
		sent["late tcp"]++
		return g.send(t, b.address(), "late tcp", 1)[0].Transport == "tcp"
	})
	a.send(t, b.address(), "on", 50)
	sent["on"] = 50
	if now := a.transport(t, "tcp").Instance; now != before {
		t.Errorf("tcp was restarted: instance %d, then %d", before, now)
	}
	b.inbox.expect(t, sent)
}

// The authority is changed in the three steps of docs/operations.md while
// notifications flow and connections are made anew: nothing is lost or doubled,
// nobody is taken for somebody else, and in the end only the new one counts.
func TestAuthorityChangesUnderTraffic(t *testing.T) {
	old, next := sdktest.NewAuthority(t, "old"), sdktest.NewAuthority(t, "next")
	step := func(names, cas []string, by *sdktest.Authority) map[string]sdk.Keys {
		keys := map[string]sdk.Keys{}
		for _, n := range names {
			k := by.Issue(n, nil)
			k.CA = []byte(strings.Join(cas, ""))
			keys[n] = k
		}
		return keys
	}
	names := []string{"alice", "bob"}
	oldCA, nextCA := string(old.Issue("x", nil).CA), string(next.Issue("x", nil).CA)
	nodes, configs, dirs := map[string]*node{}, map[string]engine.Config{}, map[string]string{}
	for n, k := range step(names, []string{oldCA}, old) {
		configs[n], dirs[n] = secured(t, n, k)
		nodes[n] = open(t, configs[n])
	}
	a, b := nodes["alice"], nodes["bob"]

	stop, sent := make(chan struct{}), make(chan int)
	var failure error
	go func() {
		n := 0
		for ; failure == nil; n++ {
			select {
			case <-stop:
				sent <- n
				return
			default:
			}
			d, err := a.Notify(t.Context(), b.address(), message("flow", n))
			if err == nil && n%16 == 0 {
				err = d.Wait(t.Context())
			}
			failure = err
		}
		<-stop
		sent <- n - 1
	}()
	for i, s := range []map[string]sdk.Keys{
		step(names, []string{oldCA, nextCA}, old), step(names, []string{oldCA, nextCA}, next), step(names, []string{nextCA}, next),
	} {
		for _, n := range names {
			sdktest.WriteKeys(t, dirs[n], s[n])
			if err := nodes[n].Reload(briefly(t), configs[n]); err != nil { // reads them now
				t.Fatal(err)
			}
		}
		for _, n := range names {
			if err := nodes[n].RestartTransport(briefly(t), "tcp"); err != nil {
				t.Fatal(err)
			}
		}
		a.send(t, b.address(), fmt.Sprintf("step %d", i), 20)
	}
	close(stop)
	n := <-sent
	if failure != nil {
		t.Fatalf("the flow: %v", failure)
	}
	b.inbox.expect(t, map[string]int{"flow": n, "step 0": 20, "step 1": 20, "step 2": 20})
	if x := a.Stats().Impostors + b.Stats().Impostors; x != 0 {
		t.Errorf("%d impostors counted", x)
	}
	late, _ := secured(t, "late", old.Issue("alice", nil))
	open(t, late).failing(t, b.address(), "is not signed by the configured CA")
}

// Other machines reach only who is secured, or says that it is not.
func TestNonLoopbackNeedsSecurity(t *testing.T) {
	_, err := engine.Open(briefly(t), everywhere(config("a")))
	if !errors.Is(err, engine.InvalidArgument) || !strings.Contains(err.Error(), "security.ca") {
		t.Errorf("got %v", err)
	}
	loopbackControl := everywhere(config("a"), "tcp", "rpcfallback")
	loopbackControl.Control = engine.ControlConfig{}
	if _, err = engine.Open(briefly(t), loopbackControl); err == nil || strings.Count(err.Error(), "security.ca") < 2 {
		t.Errorf("got %v", err)
	}

	ca := sdktest.NewAuthority(t, "ca")
	one, _ := secured(t, "one", ca.Issue("one", nil))
	two, _ := secured(t, "two", ca.Issue("two", nil))
	loose, also := config("three"), config("four")
	loose.Security.Insecure, also.Security.Insecure = true, true
	for _, pair := range [][2]engine.Config{{one, two}, {loose, also}} {
		// The receiver's control plane stays where its port is known.
		receiver := everywhere(pair[1], "tcp", "rpcfallback")
		receiver.Control = engine.ControlConfig{}
		a, b := open(t, everywhere(pair[0], "tcp", "rpcfallback")), open(t, receiver)
		for _, r := range a.send(t, b.address(), "x", 20) {
			if r.Transport != "tcp" {
				t.Errorf("got %+v", r)
			}
		}
		b.inbox.expect(t, map[string]int{"x": 20})
	}
}
