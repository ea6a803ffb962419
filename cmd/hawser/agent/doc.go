// Package agent speaks to the agent of a virtual host of the lab
// (test/rdmalab): `hawser demo --hosts` runs its nodes through it, and the lab
// itself its commands. This is the client and what goes over the wire; what
// answers is the program test/rdmalab/agent, which no package holds.
//
// A request is a connection of its own: a line of JSON, answered by a line of
// JSON. Behind the answer to Start the connection carries the child's stdin,
// stdout and stderr in frames, and is its life: the agent kills the child with
// its process group when the connection ends, and the child's end ends it.
package agent

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

// Request asks for one thing. Secret is the host's; an agent answers nobody
// else, since whoever is on the machine can reach its port.
type Request struct {
	Secret string
	Start  *Command `json:",omitempty"`
	Run    *Command `json:",omitempty"`
	Signal *Target  `json:",omitempty"`
	Stat   *Target  `json:",omitempty"`
	Read   string   `json:",omitempty"` // a file
	List   string   `json:",omitempty"` // a folder
}

// Command is a program to run: Args begin with it, Env is added to the host's.
type Command struct {
	Args []string
	Env  []string `json:",omitempty"`
	// Seconds bounds Run; 0 is 60.
	Seconds int `json:",omitempty"`
}

// Target is a process. Started and Parent are compared unless they are 0, so
// that a signal reaches no other that was given the number since.
type Target struct {
	PID, Parent int
	Started     uint64 `json:",omitempty"`
	Signal      int    `json:",omitempty"`
}

// Answer has what was asked for.
type Answer struct {
	Error string `json:",omitempty"`
	// PID is the child's.
	PID int `json:",omitempty"`
	// Output is what Run printed, Read found, or List, a name a line; Status is
	// Run's exit status.
	Output []byte `json:",omitempty"`
	Status int    `json:",omitempty"`
	// Gone, State and Started are what Stat says of a process.
	Gone    bool   `json:",omitempty"`
	State   string `json:",omitempty"`
	Started uint64 `json:",omitempty"`
	// Clock is the host's monotonic clock, in nanoseconds, in every answer.
	Clock int64
}

// The kinds of frames behind the answer to Start. An empty Stdin frame is its
// end; Exit carries an Answer with the status and comes last.
const (
	Stdin  = 'i'
	Stdout = 'o'
	Stderr = 'e'
	Exit   = 'x'
)

// MaxFrame and MaxOutput bound a frame, and what Run and Read return.
const (
	MaxFrame  = 64 << 10
	MaxOutput = 1 << 20
)

// WriteFrame writes a frame, which must not be larger than MaxFrame.
func WriteFrame(w io.Writer, kind byte, payload []byte) error {
	b := make([]byte, 5+len(payload))
	b[0] = kind
	binary.BigEndian.PutUint32(b[1:], uint32(len(payload)))
	copy(b[5:], payload)
	_, err := w.Write(b)
	return err
}

// ReadFrame reads a frame.
func ReadFrame(r io.Reader) (kind byte, payload []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > MaxFrame {
		return 0, nil, fmt.Errorf("agent: a frame of %d bytes", n)
	}
	payload = make([]byte, n)
	_, err = io.ReadFull(r, payload)
	return head[0], payload, err
}

// Host is a virtual host: Agent is where its agent is reached from this
// machine, Address its own on the network that is no rail, and Rails are its
// network devices that are.
type Host struct {
	Agent, Secret string
	Address       string
	Rails         []string
}

// Hosts reads the file that the lab writes of its hosts.
func Hosts(file string) ([]Host, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var hosts []Host
	if err := json.Unmarshal(b, &hosts); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return hosts, nil
}
