package sdk

import (
	"bytes"
	"net"
	"strings"
	"testing"
)

func TestUnknownArgumentsAreNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "x"}, `t: unknown: "--listen" "x"` + "\n"},
		{[]string{"--describe", "--json"}, `t: unknown: "--json"` + "\n"},
	} {
		var out, errs bytes.Buffer
		if code := answer(Description{Name: "t"}, c.args, &out, &errs); code != 1 || !strings.HasPrefix(errs.String(), c.want) || out.Len() > 0 {
			t.Errorf("%v: %d, %s", c.args, code, errs.String())
		}
	}
	var errs bytes.Buffer
	if code := answer(Description{Name: "t"}, []string{"--help"}, &errs, &errs); code != 0 || strings.Contains(errs.String(), "unknown") {
		t.Errorf("--help: %d, %s", code, errs.String())
	}
}

func TestAnAddressIsLoggedAsOne(t *testing.T) {
	var b bytes.Buffer
	newLogger(&b, "").Info("turned a connection away", "from", net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7}))
	if !strings.Contains(b.String(), `"from":"127.0.0.1:7"`) {
		t.Error(b.String())
	}
}
