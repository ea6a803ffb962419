package registry

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func TestResolve(t *testing.T) {
	table := map[string]string{"prefill-0": "127.0.0.1:1", "decode-0": "[::1]:2"}
	st, err := NewStatic(table)
	if err != nil {
		t.Fatal(err)
	}
	table["prefill-0"] = "changed"
	for _, tt := range []struct {
		registry      Registry
		name          string
		want, problem string
	}{
		{NewP2P(), "127.0.0.1:7", "127.0.0.1:7", ""},
		{NewP2P(), "[::1]:7", "[::1]:7", ""},
		{NewP2P(), "host.example:65535", "host.example:65535", ""},
		{NewP2P(), "", "", "is not host:port"},
		{NewP2P(), "host", "", "\"host\" is not host:port"},
		{NewP2P(), "host:0", "", "is not host:port"},
		{NewP2P(), "host:http", "", "is not host:port"},
		{NewP2P(), ":7", "", "is not host:port"},
		{NewP2P(), "a b:7", "", "is not host:port"},
		{NewP2P(), strings.Repeat("a", 1<<20) + ":1", "", "is not host:port"},
		{st, "prefill-0", "127.0.0.1:1", ""},
		{st, "decode-0", "[::1]:2", ""},
		{st, "127.0.0.1:9", "127.0.0.1:9", ""},
		{st, "127.0.0.1:0", "", "has no peer"},
		{st, "prefil-0", "", "did you mean prefill-0?"},
		{st, "router", "", "known are decode-0, prefill-0"},
		{st, "", "", "has no peer"},
	} {
		got, err := tt.registry.Resolve(context.Background(), tt.name)
		if got != tt.want {
			t.Errorf("%.40q: got %q, %v", tt.name, got, err)
		}
		if tt.problem == "" && err == nil {
			continue
		}
		if !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), tt.problem) || len(err.Error()) > 500 {
			t.Errorf("%.40q: got %v, want %s", tt.name, err, tt.problem)
		}
	}
	for _, r := range []Registry{NewP2P(), st} {
		if err := errors.Join(r.Register(context.Background(), Self{}), r.Close(), r.Close()); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewStatic(map[string]string{"a": "b"}); err == nil || !strings.Contains(err.Error(), "the address of a \"b\" is not host:port") {
		t.Errorf("got %v", err)
	}
}
