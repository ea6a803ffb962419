package simple

import (
	"io"
	"net"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

type ended struct{ sdk.Handler }

func (ended) Ended(error) {}

// A connection may be welcomed, and its endpoint end before it is handed over.
func TestLateConnectionIsClosed(t *testing.T) {
	e := newEndpoint(New(), ended{})
	e.Close()
	e.run()
	ours, theirs := net.Pipe()
	defer ours.Close()
	defer theirs.Close()
	e.arrive(theirs)
	if _, err := ours.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("read of the late connection: %v, want EOF", err)
	}
}
