package demo

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// endName is the name of the notification that is sent when all others have
// ended.
const endName = "END"

// kind says what the i-th notification stands for: they alternate.
func kind(i int) string {
	if i%2 == 0 {
		return "transfer"
	}
	return "standalone"
}

// name is the i-th notification's; the one after the last is END.
func name(i, count int) string {
	if i == count {
		return endName
	}
	return fmt.Sprintf("%s-%05d", kind(i), i)
}

// index is the number in a name, or -1.
func index(name string) int {
	_, digits, _ := strings.Cut(name, "-")
	if i, err := strconv.Atoi(digits); err == nil {
		return i
	}
	return -1
}

// sizes says how large the notifications of a row are: their payloads have
// Base bytes, or Large of their index, which counts the name.
type sizes struct {
	Base  int
	Large map[int]int `json:",omitempty"`
}

const smallPayload = 64

func (z sizes) payload(name string) []byte {
	if n, ok := z.Large[index(name)]; ok {
		return payload(name, n-len(name))
	}
	return payload(name, z.Base)
}

// payload is what a notification of this name carries, so that damage shows.
func payload(name string, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(b) // cannot fail
	return b
}

func (z sizes) intact(name string, got []byte) bool { return bytes.Equal(got, z.payload(name)) }

// entries is what a node tells its parent as it happens. Times are lab.Now's.
type entries struct {
	Sent    []sent    `json:",omitempty"`
	Ended   []ending  `json:",omitempty"`
	Arrived []arrival `json:",omitempty"`
	// Done: all of this node's have ended, END included if it sends that.
	Done bool `json:",omitempty"`
}

// sent is a notification that the sender's engine has taken.
type sent struct {
	Index int
	At    time.Duration
}

// ending is how a notification ended at the sender.
type ending struct {
	Index int
	At    time.Duration
	// Acked, or else Code is the failure's, empty if it had none that says
	// whether a copy may still arrive.
	Acked bool `json:",omitempty"`
	// Taken: only the peer's transport has said so.
	Taken bool   `json:",omitempty"`
	Code  string `json:",omitempty"`
	Error string `json:",omitempty"`
	// Seq and Copies are those of the engine's report.
	Seq    uint64
	Copies int
}

// arrival is a notification that the receiver's application got.
type arrival struct {
	Name      string
	Transport string
	Sender    string
	Session   uint64
	Seq       uint64
	At        time.Duration
	Intact    bool
	// Early: the bytes of its transfer were not there yet, or wrong.
	Early bool `json:",omitempty"`
	// Life is the receiver's, counted by the parent from 1.
	Life int `json:",omitempty"`
}
