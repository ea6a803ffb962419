//go:build linux

package remote

import (
	"errors"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
)

// Keys go to plugins that ask for them, and to no other.
func TestKeysAreForThoseWhoAsk(t *testing.T) {
	keys := sdk.Keys{CA: []byte("ca"), Cert: []byte("cert"), Key: []byte("key"), Allow: []string{"a", "b"}}
	for _, asks := range []bool{true, false} {
		p := &raw{describe: honest()}
		if !asks {
			p.describe.Features = []uint32{1, 2, 3}
		}
		tr := openRaw(t, p)
		if _, err := tr.Configure(testContext(t), sdk.Config{Keys: &keys}); err != nil {
			t.Fatal(err)
		}
		if err := tr.SetKeys(testContext(t), keys); asks != (err == nil) || !asks && !errors.Is(err, sdk.Unsupported) {
			t.Errorf("asks %v: SetKeys: %v", asks, err)
		}
		p.mu.Lock()
		for _, k := range p.keys {
			switch {
			case !asks && k != nil:
				t.Error("a plugin that does not ask was given keys")
			case asks && (string(k.GetCa()) != "ca" || string(k.GetCert()) != "cert" || string(k.GetKey()) != "key" || len(k.GetAllow()) != 2):
				t.Errorf("got %v", k)
			}
		}
		if want := map[bool]int{true: 2, false: 1}[asks]; len(p.keys) != want {
			t.Errorf("%d calls, want %d", len(p.keys), want)
		}
		p.mu.Unlock()
		if err := tr.Close(testContext(t)); err != nil {
			t.Error(err)
		}
	}
}

func TestKeysAreBounded(t *testing.T) {
	tr := openRaw(t, &raw{})
	for _, k := range []sdk.Keys{{CA: make([]byte, bounds.KeysBytes+1)}, {Allow: make([]string, bounds.KeysAllow+1)}} {
		if _, err := tr.Configure(testContext(t), sdk.Config{Keys: &k}); !errors.Is(err, sdk.TooLarge) {
			t.Errorf("Configure: %v", err)
		}
		if err := tr.SetKeys(testContext(t), k); !errors.Is(err, sdk.TooLarge) {
			t.Errorf("SetKeys: %v", err)
		}
	}
	if err := tr.Close(testContext(t)); err != nil {
		t.Error(err)
	}
}
