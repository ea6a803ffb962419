//go:build linux

package scenarios

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/engine"
)

// newBinary puts a tcp plugin that differs from every other one at a path, in
// one step. ELF tolerates what follows its end.
func newBinary(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(bin, "hawser-tcp"))
	if err == nil {
		b = append(b, path...)
		b = strconv.AppendUint(b, rand.Uint64(), 10)
		err = os.WriteFile(path+".new", b, 0o755)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// tcpAt is a configuration whose tcp plugin is at a path.
func tcpAt(name, path string) engine.Config {
	cfg := config(name)
	cfg.Transports = []engine.TransportConfig{{Name: "tcp", Plugin: path}, {Name: "rpcfallback"}}
	return cfg
}

// reload changes to the configuration, and requires another process for it.
func (n *node) reload(cfg engine.Config) error {
	before, _ := n.status("tcp")
	old, err := holdOn(before.PID)
	if err != nil {
		return err
	}
	defer old.release()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := n.Reload(ctx, cfg); err != nil {
		return err
	}
	now, _ := n.status("tcp")
	if now.State != "up" || now.PID == before.PID || now.Instance <= before.Instance || !old.gone() {
		return fmt.Errorf("not replaced: before %+v, now %+v, old one gone: %v", before, now, old.gone())
	}
	return nil
}

// fewHandedOver is how many of the notifications that were on their way when
// the peer replaced its transport may have to be sent again: what was given to
// one instance between the peer's and its own end, which at 1000 a second is at
// most a second apart. The stall timeout, by which alone the sender would find
// out, is ten.
const fewHandedOver = 1000

// Scenario 61.
func TestScenario61ReloadToANewBinary(t *testing.T) {
	dir := t.TempDir()
	at := map[string]string{"sender": filepath.Join(dir, "hawser-s"), "receiver": filepath.Join(dir, "hawser-r"), "elsewhere": filepath.Join(dir, "hawser-e")}
	for _, path := range at {
		newBinary(t, path)
	}
	sender, receiver := open(t, tcpAt("sender", at["sender"])), open(t, tcpAt("receiver", at["receiver"]))
	l := sender.stream(t, receiver.address(), "load")
	l.more(t, &receiver.inbox, 200)

	newBinary(t, at["sender"])
	if err := sender.reload(tcpAt("sender", at["sender"])); err != nil { // the same path
		t.Fatal(err)
	}
	l.more(t, &receiver.inbox, 200)
	if n := sender.Stats().HandedOver; n != 0 {
		t.Errorf("the sender's own reload drains, but %d were handed over", n)
	}

	if err := receiver.reload(tcpAt("receiver", at["elsewhere"])); err != nil { // another path
		t.Fatal(err)
	}
	l.more(t, &receiver.inbox, 200)

	newBinary(t, at["sender"])
	newBinary(t, at["elsewhere"])
	both := make(chan error, 2)
	go func() { both <- receiver.reload(tcpAt("receiver", at["elsewhere"])) }()
	go func() { both <- sender.reload(tcpAt("sender", at["sender"])) }()
	if err := errors.Join(<-both, <-both); err != nil {
		t.Fatal(err)
	}
	l.more(t, &receiver.inbox, 200)

	pid := sender.transport(t, "tcp").PID
	sender.reloadNothing(t, tcpAt("sender", at["sender"]), pid)
	over := receiver.inbox.over()["tcp"]
	until(t, "tcp to carry", func() bool { return receiver.inbox.over()["tcp"] > over })
	count := l.end(t)
	receiver.inbox.expect(t, map[string]int{"load": count})
	s := sender.Stats()
	t.Logf("%d sent, %d handed over, %d resent; over %v", count, s.HandedOver, s.Resent, receiver.inbox.over())
	if s.HandedOver > fewHandedOver {
		t.Errorf("%d were handed over", s.HandedOver)
	}
	if s.TransportsDown != 2 || receiver.Stats().TransportsDown != 2 {
		t.Errorf("%d and %d instances went down, 2 were replaced at each", s.TransportsDown, receiver.Stats().TransportsDown)
	}
}

// reloadNothing: the same binary at the same path is left alone.
func (n *node) reloadNothing(t *testing.T, cfg engine.Config, pid int) {
	t.Helper()
	if err := n.Reload(briefly(t), cfg); err != nil {
		t.Fatal(err)
	}
	if now := n.transport(t, "tcp").PID; now != pid {
		t.Errorf("process %d replaced %d, though nothing had changed", now, pid)
	}
}

// nodeLine is what `hawser node --print -o json` says.
type nodeLine struct {
	Event, Address, Name, Error string
	Session                     string
	Seq                         uint64
	Transports                  []struct {
		Name, State string
		PID         int
	}
}

func (l nodeLine) tcp() int {
	for _, t := range l.Transports {
		if t.Name == "tcp" {
			return t.PID
		}
	}
	return 0
}

// Scenario 61 for `hawser node`, which reloads at SIGHUP.
func TestScenario61NodeReloadsAtSIGHUP(t *testing.T) {
	dir := t.TempDir()
	plugin, file := filepath.Join(dir, "hawser-r"), filepath.Join(dir, "c.yaml")
	newBinary(t, plugin)
	text := "node: {name: receiver}\ntransports: [{name: tcp, plugin: " + plugin + "}, {name: rpcfallback}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := command(t.Context(), "node", "--print", "-o", "json", "--plugins-dir", bin, "--config", file)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.Stderr = os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	var inbox tally
	events := make(chan nodeLine, 16)
	go func() {
		defer close(events)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var l nodeLine
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				t.Errorf("%v: %s", err, lines.Text())
			}
			if l.Event != "notification" {
				events <- l
				continue
			}
			r := engine.Received{Notification: engine.Notification{Name: l.Name, Payload: payload(l.Name)}}
			r.Stamp.Seq = l.Seq
			r.Stamp.Session, _ = strconv.ParseUint(l.Session, 16, 64)
			inbox.take(&r)
		}
	}()
	next := func() (l nodeLine) {
		t.Helper()
		select {
		case l = <-events:
		case <-time.After(patience):
			t.Fatal("the node says nothing")
		}
		return l
	}
	up := next()
	if up.tcp() == 0 {
		t.Fatalf("got %+v", up)
	}
	sender := open(t, config("sender"))
	l := sender.stream(t, up.Address, "load")
	l.more(t, &inbox, 200)
	last := up.tcp()
	for range 2 {
		newBinary(t, plugin)
		if err := c.Process.Signal(unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
		now := next()
		if now.Event != "reloaded" || now.Error != "" || now.tcp() == 0 || now.tcp() == last {
			t.Fatalf("process %d before, then %+v", last, now)
		}
		last = now.tcp()
		l.more(t, &inbox, 200)
	}
	count := l.end(t)
	until(t, "all to be printed", func() bool { return inbox.count() >= count })
	if err := c.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range events { // until it has ended
	}
	if err := c.Wait(); err != nil {
		t.Errorf("the node ended with %v", err)
	}
	inbox.expect(t, map[string]int{"load": count})
	if n := sender.Stats().HandedOver; n > fewHandedOver {
		t.Errorf("%d were handed over", n)
	}
}
