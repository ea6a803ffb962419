//go:build linux

package scenarios

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// roleVariable says what the test binary is to be instead of a test.
const roleVariable = "HAWSER_SCENARIO_ROLE"

// play is the main of the other processes. Plugins serve; the others get one
// JSON value after the other on stdin and answer on stdout.
func play(role string) {
	switch role {
	case "liar":
		serveLiar()
	case "contract":
		serveOtherContract()
	case "sink", "flooder", "host", "provider":
		orders := make(chan json.RawMessage)
		go takeOrders(orders)
		talk := &dialogue{orders: orders, words: json.NewEncoder(os.Stdout)}
		err := map[string]func(*dialogue) error{"sink": sink, "flooder": flooder, "host": host, "provider": provider}[role](talk)
		if err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(1)
		}
	default:
		fmt.Fprintf(os.Stderr, "no role %q\n", role)
		os.Exit(1)
	}
}

// takeOrders ends the process at once when its parent is gone.
func takeOrders(orders chan<- json.RawMessage) {
	for d := json.NewDecoder(os.Stdin); ; {
		var order json.RawMessage
		if d.Decode(&order) != nil {
			os.Exit(3)
		}
		orders <- order
	}
}

// dialogue is a child's side of the talk with its parent.
type dialogue struct {
	orders <-chan json.RawMessage
	words  *json.Encoder
}

func (d *dialogue) hear(order any) error { return json.Unmarshal(<-d.orders, order) }
func (d *dialogue) say(word any) error   { return d.words.Encode(word) }

// child is the parent's side.
type child struct {
	*exec.Cmd
	orders *json.Encoder
	words  *json.Decoder
}

// startChild starts the test binary in a role. The test's end ends it.
func startChild(t *testing.T, role string) *child {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{Cmd: exec.Command(exe)}
	c.Env = append(os.Environ(), roleVariable+"="+role)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _, _ = io.Copy(io.Discard, out); _ = c.Wait() })
	c.orders, c.words = json.NewEncoder(in), json.NewDecoder(out)
	return c
}

func (c *child) tell(t *testing.T, order any) {
	t.Helper()
	if err := c.orders.Encode(order); err != nil {
		t.Fatalf("tell a child: %v", err)
	}
}

// ask waits for the child's next word.
func (c *child) ask(t *testing.T, word any) {
	t.Helper()
	if err := c.words.Decode(word); err != nil {
		t.Fatalf("hear from a child: %v", err)
	}
}
