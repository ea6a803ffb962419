package address

import (
	"net"
	"strings"
	"testing"
)

func TestPublished(t *testing.T) {
	tcp := func(s string) net.Addr {
		a, err := net.ResolveTCPAddr("tcp", s)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	for _, c := range []struct{ listening, advertise, want string }{
		{"127.0.0.1:70", "", "127.0.0.1:70"},
		{"[::1]:70", "", "[::1]:70"},
		{"0.0.0.0:70", "", ""},
		{"[::]:70", "", ""},
		{"0.0.0.0:70", "host", "host:70"},
		{"0.0.0.0:70", "host:0", "host:70"},
		{"0.0.0.0:70", "host:80", "host:80"},
		{"0.0.0.0:70", "[fe80::1]:80", "[fe80::1]:80"},
		{"0.0.0.0:70", "a:b:c", ""},
		{"0.0.0.0:70", ":80", ""},
		{"0.0.0.0:70", strings.Repeat("x", 300), ""},
	} {
		got, err := Published(tcp(c.listening), c.advertise)
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("listening on %s, advertise %q: %q, %v, want %q", c.listening, c.advertise, got, err, c.want)
		}
	}
}
