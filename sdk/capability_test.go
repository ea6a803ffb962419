package sdk

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestCapabilityTravelsWholeAndIsPrintedShort(t *testing.T) {
	c := Capability{0xde, 0xad, 0xbe, 0xef, 15: 0x99}
	b, err := json.Marshal(c)
	if err != nil || string(b) != `"deadbeef000000000000000000000099"` {
		t.Fatalf("%s, %v", b, err)
	}
	var back Capability
	if err := json.Unmarshal(b, &back); err != nil || back != c {
		t.Fatalf("%v, %v", back, err)
	}
	if s := fmt.Sprintf("%v %s %+v", c, c, struct{ C Capability }{c}); strings.Contains(s, "99") {
		t.Errorf("a log would have all of it: %s", s)
	}
	for _, bad := range []string{"", "dead", strings.Repeat("0", 31), strings.Repeat("0", 33), strings.Repeat("x", 32)} {
		if back.UnmarshalText([]byte(bad)) == nil || back != c {
			t.Errorf("%q was read: %v", bad, back)
		}
	}
}
