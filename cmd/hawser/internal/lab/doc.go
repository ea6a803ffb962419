// Package lab runs nodes in processes of their own, for `hawser demo` and
// `hawser bench`: the running program starts itself again with a hidden
// command, and the two speak JSON, one message a line, over the child's stdin
// and stdout. [Start] and [Process] are the parent's side, [Serve] is the
// child's, and [Node] is an engine in a child.
//
// A child ends when its stdin does and, on Linux, is killed when its parent
// dies, whatever kills that. It is in a process group of its own, so that an
// interrupt typed at the terminal reaches the parent only, which cleans up.
package lab

import "encoding/json"

// message is a line: a request (ID, Do, Args), its answer (ID, OK or Error),
// or an event (Event, Data).
type message struct {
	ID    uint64          `json:"id,omitempty"`
	Do    string          `json:"do,omitempty"`
	Args  json.RawMessage `json:"args,omitempty"`
	OK    json.RawMessage `json:"ok,omitempty"`
	Error string          `json:"error,omitempty"`
	Event string          `json:"event,omitempty"`
	Data  json.RawMessage `json:"data,omitempty"`
}

// maxLine bounds a line.
const maxLine = 16 << 20
