package bounds

import (
	"fmt"
	"strings"
	"testing"
)

func TestCheckAttributes(t *testing.T) {
	many := map[string]string{}
	for i := range AttributeEntries {
		many[fmt.Sprint(i)] = ""
	}
	if err := CheckAttributes(many); err != nil {
		t.Error(err)
	}
	many["one more"] = ""
	if err := CheckAttributes(many); err == nil {
		t.Error("no limit to entries")
	}
	if err := CheckAttributes(map[string]string{"k": strings.Repeat("x", AttributeBytes-1)}); err != nil {
		t.Error(err)
	}
	if err := CheckAttributes(map[string]string{"k": strings.Repeat("x", AttributeBytes)}); err == nil {
		t.Error("no limit to bytes")
	}
	if err := CheckAttributes(nil); err != nil {
		t.Error(err)
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "plain": "plain", "a\xffb": "ab",
		strings.Repeat("x", TextBytes-1) + "ä": strings.Repeat("x", TextBytes-1),
	} {
		if got := Text(in); got != want {
			t.Errorf("%.20q: %.20q", in, got)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, frame := range []int{-1, 0, 1, 65536, 16<<20 + 64<<10} {
		if MaxRecord(frame) < max(frame, minRecord) || MaxMessage(frame) <= MaxRecord(frame) {
			t.Error(frame, MaxRecord(frame), MaxMessage(frame))
		}
	}
}
