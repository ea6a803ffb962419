//go:build linux

package remote

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/link"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

func mover() *raw {
	p := &raw{describe: honest()}
	p.describe.Features = []uint32{uint32(sdk.FeatureMove)}
	return p
}

func connectMemory(t *testing.T, tr *Transport) *waiting {
	t.Helper()
	h := newWaiting(t)
	if _, err := tr.Connect(testContext(t), sdk.Target{Use: sdk.UseMemory}, noAnswer, h); err != nil {
		t.Fatal(err)
	}
	return h
}

// A frame on an endpoint for memory does not reach the engine. The endpoint is
// closed, and its end is the plugin's, who may still touch memory for it.
func TestAFrameEndsAnEndpointForMemory(t *testing.T) {
	p := mover()
	tr := openRaw(t, p)
	h := connectMemory(t, tr)
	p.say(link.Record{Type: link.Received, Endpoint: 1, Payload: []byte("x")},
		link.Record{Type: link.Received, Endpoint: 1, Payload: []byte("y")})
	closed := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.closes)
	}
	for end := time.Now().Add(10 * time.Second); closed() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the plugin was not asked to end it")
		}
	}
	if err := tr.ping(testContext(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-h.done:
		t.Error("it ended without the plugin's word")
	default:
	}
	p.say(link.Record{Type: link.Ended, Endpoint: 1, ID: uint64(sdk.Closed)})
	if err := h.await(t); !errors.Is(err, sdk.Closed) || len(h.got) != 0 || tr.Dropped() != 2 || closed() != 1 {
		t.Errorf("%v, received %q, dropped %d, closed %d times", err, h.got, tr.Dropped(), closed())
	}
}

// Only an end that is not the plugin's word has code PluginExited: then its
// process may still touch memory.
func TestWhoEndsAnEndpointForMemory(t *testing.T) {
	p := mover()
	tr := openRaw(t, p)
	said, broken := connectMemory(t, tr), connectMemory(t, tr)
	p.say(link.Record{Type: link.Ended, Endpoint: 1, ID: uint64(sdk.PluginExited), Payload: []byte("of one")})
	if err := said.await(t); sdk.CodeOf(err) != sdk.Unavailable {
		t.Errorf("a living plugin's end: %v, %v", sdk.CodeOf(err), err)
	}
	// It closes, and says nothing of the endpoint.
	if err := tr.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := broken.await(t); sdk.CodeOf(err) != sdk.PluginExited {
		t.Errorf("the link's end: %v, %v", sdk.CodeOf(err), err)
	}
}

func TestRegisterBoundsItsAnswer(t *testing.T) {
	p := mover()
	p.register = &pb.RegisterResponse{Attributes: map[string]string{"x": strings.Repeat("x", 17<<10)}}
	tr := openRaw(t, p)
	_, err := tr.Register(testContext(t), sdk.Region{
		Capability: sdk.Capability{1}, Kind: sdk.DeviceMemory, Length: 1, Allocation: 1,
		HandleKind: sdk.FabricHandle, Handle: make([]byte, sdk.HandleBytes),
	})
	if !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), "bytes of attributes") {
		t.Error(err)
	}
}
