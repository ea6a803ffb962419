package sdk

import (
	"context"
	"encoding/json"
)

// Examiner is the ability to say what this machine has of what the transport
// needs, and what to do about the rest: what a person asks with `hawser
// doctor`. It is not in [Description.Features], since no engine uses it: a
// plugin's binary is run with --doctor for it, and [Serve] answers.
type Examiner interface {
	// Examine looks at this machine as Configure would with these settings,
	// and by the same code, so that both come to the same end. It is called
	// instead of Configure, once, in a process of its own, while instances of
	// the transport may be running: it must not disturb them, change anything,
	// or leave anything open. Settings are as in [Config.Settings]; nobody has
	// checked them.
	//
	// It returns before ctx ends. What cannot be found out is a finding, too.
	Examine(ctx context.Context, settings json.RawMessage) []Finding
}

// Finding is one thing that was found. Texts are for people, one line each.
type Finding struct {
	// Subject is what was looked at: "library", "port mlx5_0/1".
	Subject string `json:"subject"`
	// State says what it means for the transport.
	State FindingState `json:"state"`
	// Found is how it is.
	Found string `json:"found"`
	// Do is what a person can do about it. Empty if nothing has to be done.
	Do string `json:"do,omitempty"`
}

// FindingState is what a finding means for its transport. The set is closed.
type FindingState string

const (
	// FindingOK: as it should be.
	FindingOK FindingState = "ok"
	// FindingWarning: the transport can carry, with less than it could: a port
	// is down, a limit is low.
	FindingWarning FindingState = "warning"
	// FindingProblem: the transport cannot carry because of this.
	FindingProblem FindingState = "problem"
	// FindingAbsent: this machine does not have what the transport is for. It
	// cannot carry, and nothing is broken.
	FindingAbsent FindingState = "absent"
)

// Valid reports whether s is one of the closed set.
func (s FindingState) Valid() bool {
	switch s {
	case FindingOK, FindingWarning, FindingProblem, FindingAbsent:
		return true
	}
	return false
}

// Examined is a plugin's answer to --doctor.
type Examined struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Contract int    `json:"contract"`
	// Examines is false for a transport that is no [Examiner].
	Examines bool      `json:"examines"`
	Findings []Finding `json:"findings"`
}
