package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/engine"
)

// receivedJSON is a notification for programs. Name and payload are any bytes:
// the payload is base64, and so is a name that is not UTF-8, in NameBase64.
type receivedJSON struct {
	Event      string    `json:"event"`
	At         time.Time `json:"at"`
	Name       *string   `json:"name,omitempty"`
	NameBase64 []byte    `json:"name_base64,omitempty"`
	Payload    []byte    `json:"payload"`
	Bytes      int       `json:"bytes"`
	Transport  string    `json:"transport"`
	From       nodeJSON  `json:"from"`
	// Session is hexadecimal: JSON's numbers are not exact that far.
	Session string `json:"session"`
	Seq     uint64 `json:"seq"`
}

// nodeJSON is a node for programs.
type nodeJSON struct {
	Name        string `json:"name"`
	Address     string `json:"address"`
	Incarnation string `json:"incarnation"`
}

func nodeOf(n engine.Node) nodeJSON {
	return nodeJSON{n.Name, n.Address, n.Incarnation.String()}
}

// printReceived prints one notification.
func printReceived(w io.Writer, o output, r *engine.Received, at time.Time) error {
	if o == outputText {
		_, err := fmt.Fprintf(w, "%s  from %s (%s) over %s: %s, %d bytes: %s\n",
			at.Format("15:04:05.000"), printableName(r.From.Name), r.From.Address, r.Transport,
			strconv.Quote(r.Name), len(r.Payload), strconv.Quote(string(r.Payload)))
		return err
	}
	j := receivedJSON{
		Event: "notification", At: at, Payload: r.Payload, Bytes: len(r.Payload), Transport: r.Transport, From: nodeOf(*r.From),
		Session: fmt.Sprintf("%016x", r.Stamp.Session), Seq: r.Stamp.Seq,
	}
	if utf8.ValidString(r.Name) {
		j.Name = &r.Name
	} else {
		j.NameBase64 = []byte(r.Name)
	}
	return line(w, j)
}

// printableName is a peer's name without anything that a terminal acts on.
func printableName(s string) string {
	q := strconv.Quote(s)
	if q == `"`+s+`"` {
		return s
	}
	return q
}

// upJSON says that a node is up, as one line for programs.
type upJSON struct {
	Event string `json:"event"`
	PID   int    `json:"pid"`
	nodeJSON
	Transports  []transportJSON `json:"transports"`
	AdminSocket string          `json:"admin_socket,omitempty"`
	AdminHTTP   string          `json:"admin_http,omitempty"`
}

type transportJSON struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	PID      int    `json:"pid,omitempty"`
	Instance uint64 `json:"instance,omitempty"`
	Version  string `json:"version,omitempty"`
	Error    string `json:"error,omitempty"`
}

func transportsOf(e *engine.Engine) []transportJSON {
	list := []transportJSON{}
	for _, t := range e.Transports() {
		j := transportJSON{Name: t.Name, State: t.State, PID: t.PID, Instance: t.Instance, Version: t.Version}
		if t.LastError != nil {
			j.Error = t.LastError.Error()
		}
		list = append(list, j)
	}
	return list
}
