package streams_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/streams"
)

func TestExamine(t *testing.T) {
	for _, c := range []struct {
		listen, advertise string
		err               error
		want              string
	}{
		{"127.0.0.1:0", "", nil, "address|ok|peers are told to dial 127.0.0.1, at the port that is free then: only those on this machine can|"},
		{"10.0.0.7:7500", "", nil, "address|ok|peers are told to dial 10.0.0.7:7500|"},
		{"0.0.0.0:7500", "10.0.0.7", nil, "address|ok|peers are told to dial 10.0.0.7:7500|"},
		{"0.0.0.0:0", "decode-0", nil, "address|ok|peers are told to dial decode-0, at the port that is free then|"},
		{"0.0.0.0:7500", "", nil, "address|problem|listening on 0.0.0.0:7500, which is no address that peers can dial: set advertise|set advertise"},
		{":7500", "", nil, "address|problem|listening on [::]:7500, which is no address"},
		{"10.0.0.7:7500", "10.0.0.7:x", nil, `address|problem|advertise "10.0.0.7:x": `},
		{"nonsense", "", nil, "settings|problem|"},
		{"127.0.0.1:0", "", errors.New("tcp settings: no"), "settings|problem|tcp settings: no|"},
	} {
		list := streams.Examine(streams.Settings{Listen: c.listen, Advertise: c.advertise}, c.err)
		if len(list) != 1 {
			t.Fatalf("%+v: %+v", c, list)
		}
		f := list[0]
		if got := fmt.Sprintf("%s|%s|%s|%s", f.Subject, f.State, f.Found, f.Do); !strings.HasPrefix(got, c.want) {
			t.Errorf("%s, %s: %s; want %s", c.listen, c.advertise, got, c.want)
		}
	}
}
