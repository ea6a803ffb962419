package rigtest

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Identities checks that an endpoint under TLS is had only by the engine that
// it is for: another one that the authority has signed, and that knows every
// token, is refused at either end, and logged.
func Identities(t *testing.T, fresh func() sdk.Transport) {
	ca := sdktest.NewAuthority(t, "ca")
	log := &Log{}
	instance := uint64(0)
	start := func(name string) *Node {
		k := ca.Issue(name, nil)
		instance++
		return Start(t, fresh(), sdk.Config{Instance: instance, Keys: &k, Log: slog.New(slog.NewTextHandler(log, nil))})
	}
	identity := func(name string) string {
		r, err := mtls.New(ca.Issue(name, nil))
		if err != nil {
			t.Fatal(err)
		}
		return r.Identity()
	}
	generation := uint64(0)
	// connect has the two meet, each expecting the one of the given name.
	connect := func(a, b *Node, expectedByA, expectedByB string) (e sdk.Endpoint, ra, rb *Recorder, err error) {
		generation++
		ra, rb = NewRecorder(t), NewRecorder(t)
		target, back := Target(a, b, generation), Target(b, a, generation)
		target.PeerIdentity, back.PeerIdentity = identity(expectedByA), identity(expectedByB)
		e, err = a.Notifier().Connect(Context(t), target, func(ctx context.Context, offer []byte) ([]byte, error) {
			_, answer, err := b.Notifier().Accept(ctx, back, offer, rb)
			return answer, err
		}, ra)
		return e, ra, rb, err
	}
	alice, bob, mallory, twin := start("alice"), start("bob"), start("mallory"), start("alice")

	_, _, _, err := connect(alice, mallory, "bob", "alice")
	if !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), `"mallory"`) || !strings.Contains(err.Error(), `"bob"`) {
		t.Errorf("mallory answers for bob: %v", err)
	}
	_, _, rb, err := connect(mallory, bob, "bob", "alice")
	if !errors.Is(err, sdk.Refused) || !strings.Contains(err.Error(), "the certificate is not that of the engine") {
		t.Errorf("mallory comes for alice: %v", err)
	}
	if !log.Has("the certificate is not that of the engine") {
		t.Error("that mallory was turned away is not logged")
	}
	if received, _, _ := rb.Counts(); received != 0 {
		t.Errorf("%d frames of mallory's arrived", received)
	}

	for name, pair := range map[string][2]*Node{"alice": {alice, bob}, "another of alice's certificate": {twin, bob}} {
		e, ra, rb, err := connect(pair[0], pair[1], "bob", "alice")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := (&Sender{Endpoint: e, Recorder: ra}).Send([]byte("x")); err != nil {
			t.Fatal(err)
		}
		rb.WaitReceived(1)
	}
}
