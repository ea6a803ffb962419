package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
)

func TestUnknownArgumentsAreNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--listen", "x"}, `t: unknown: "--listen" "x"` + "\n"},
		{[]string{"--describe", "--json"}, `t: unknown: "--json"` + "\n"},
		{[]string{"--doctor", "{}"}, `t: unknown: "{}"` + "\n"},
	} {
		var out, errs bytes.Buffer
		if code := answer(nil, Description{Name: "t"}, c.args, nil, &out, &errs); code != 1 || !strings.HasPrefix(errs.String(), c.want) || out.Len() > 0 {
			t.Errorf("%v: %d, %s", c.args, code, errs.String())
		}
	}
	var errs bytes.Buffer
	if code := answer(nil, Description{Name: "t"}, []string{"--help"}, nil, &errs, &errs); code != 0 || strings.Contains(errs.String(), "unknown") {
		t.Errorf("--help: %d, %s", code, errs.String())
	}
}

// examiner finds what it was given.
type examiner struct{ Transport }

func (examiner) Examine(_ context.Context, settings json.RawMessage) []Finding {
	return []Finding{{Subject: "settings", State: FindingWarning, Found: string(settings), Do: "nothing"}}
}

// A transport that can examine is asked, with the settings that it is given;
// of one that cannot it is said that it cannot.
func TestDoctorIsAnswered(t *testing.T) {
	d := Description{Name: "t", Version: "7", Contract: 1}
	for _, c := range []struct {
		t    Transport
		args []string
		want Examined
	}{
		{nil, []string{"--doctor"}, Examined{"t", "7", 1, false, []Finding{}}},
		{examiner{}, []string{"--doctor"}, Examined{"t", "7", 1, true, []Finding{{"settings", FindingWarning, "{}", "nothing"}}}},
		{examiner{}, []string{"-doctor", "-"}, Examined{"t", "7", 1, true, []Finding{{"settings", FindingWarning, "given", "nothing"}}}},
	} {
		var out, errs bytes.Buffer
		var got Examined
		code := answer(c.t, d, c.args, strings.NewReader("given"), &out, &errs)
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || code != 0 || errs.Len() > 0 || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%v: %d, %v, %s%s", c.args, code, err, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	endless := strings.NewReader(strings.Repeat("x", bounds.SettingsBytes+1))
	if code := answer(examiner{}, d, []string{"--doctor", "-"}, endless, &out, &errs); code != 1 || out.Len() > 0 || !strings.Contains(errs.String(), "more than") {
		t.Errorf("endless settings: %d, %s", code, errs.String())
	}
}

func TestAnAddressIsLoggedAsOne(t *testing.T) {
	var b bytes.Buffer
	newLogger(&b, "").Info("turned a connection away", "from", net.Addr(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7}))
	if !strings.Contains(b.String(), `"from":"127.0.0.1:7"`) {
		t.Error(b.String())
	}
}
