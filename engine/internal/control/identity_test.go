package control

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Both ends of a call know whose certificate the other's connection bears, and
// a client that is bound to one takes nothing from another.
func TestWhoCalledAndWhoAnswered(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	for name, carriers := range map[string]func() (a, b Carrier){
		"memory": func() (a, b Carrier) {
			n := NewNetwork()
			n.Identify("a", `"alice"`)
			n.Identify("b", `"bob"`)
			return n.Carrier("a"), n.Carrier("b")
		},
		"grpc": func() (a, b Carrier) {
			return NewGRPC(Options{Keys: ring(t, ca.Issue("alice", nil))}), NewGRPC(Options{Keys: ring(t, ca.Issue("bob", nil))})
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := carriers()
			t.Cleanup(func() { closeCarrier(t, a); closeCarrier(t, b) })
			address, err := b.Listen(&stub{
				hello: func(ctx context.Context, q HelloRequest) (HelloReply, error) {
					if by := Caller(ctx); by != `"alice"` {
						t.Errorf("called by %s", by)
					}
					r := someHelloReply()
					r.Identity = `"alice"` // does not travel
					return r, nil
				},
				goodbye: func(context.Context, GoodbyeRequest) error { return sdk.Errorf(sdk.SessionUnknown, "not known here") },
			})
			if err != nil {
				t.Fatal(err)
			}
			c := a.Dial(address)
			for _, to := range []string{"", `"bob"`} {
				c.Bind(to)
				r, err := c.Hello(testContext(t), someHello())
				if err != nil || r.Identity != `"bob"` {
					t.Fatalf("bound to %q: %s, %v", to, r.Identity, err)
				}
				if err := c.Goodbye(testContext(t), GoodbyeRequest{From: incarnation(1)}); !errors.Is(err, sdk.SessionUnknown) {
					t.Errorf("bound to %q: %v", to, err)
				}
			}
			c.Bind(`"carol"`)
			_, err = c.Hello(testContext(t), someHello())
			refused := c.Goodbye(testContext(t), GoodbyeRequest{From: incarnation(1)})
			for _, err := range []error{err, refused} {
				if !errors.Is(err, ErrAnother) || !errors.Is(err, sdk.PeerRestarted) || errors.Is(err, sdk.SessionUnknown) || !Answered(err) ||
					!strings.Contains(err.Error(), `"bob" is there now, not that of "carol"`) {
					t.Errorf("bound to carol: %v", err)
				}
			}
		})
	}
}
