package link

import (
	"errors"
	"strings"
	"testing"
)

func TestNegotiate(t *testing.T) {
	both := []string{"unix", "grpc"}
	for _, c := range []struct {
		offered, supported []string
		carrier, reason    string
	}{
		{both, both, "unix", ""},
		{[]string{"ring", "unix", "grpc"}, both, "unix", "ring: not implemented"},
		{[]string{"ring", "unix", "grpc"}, []string{"ring", "grpc"}, "grpc", "ring: not implemented; unix: not supported here"},
		{both, []string{"grpc"}, "grpc", "unix: not supported here"},
		{[]string{"grpc", "unix"}, both, "grpc", ""}, // the offer's order counts
		{[]string{"carrier-pigeon", "", "grpc"}, []string{"carrier-pigeon", "grpc"}, "grpc", ""},
		{[]string{"unix", "unix", "unix", "grpc"}, []string{"grpc"}, "grpc", "unix: not supported here"},
		{[]string{"UNIX", "grpc"}, both, "grpc", ""},
	} {
		carrier, reason, err := Negotiate(c.offered, c.supported)
		if carrier != c.carrier || reason != c.reason || err != nil {
			t.Errorf("Negotiate(%q, %q) = %q, %q, %v; want %q, %q", c.offered, c.supported, carrier, reason, err, c.carrier, c.reason)
		}
	}
	for _, c := range []struct {
		offered, supported []string
		text               string
	}{
		{nil, both, "none offered"},
		{both, nil, "unix: not supported here; grpc: not supported here"},
		{[]string{"ring"}, []string{"ring"}, "ring: not implemented"},
		{[]string{"carrier-pigeon"}, []string{"carrier-pigeon"}, "none offered"},
	} {
		carrier, _, err := Negotiate(c.offered, c.supported)
		if carrier != "" || !errors.Is(err, ErrNoCarrier) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("Negotiate(%q, %q) = %q, %v; want %q", c.offered, c.supported, carrier, err, c.text)
		}
	}
}
