package sdk

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
)

func TestAdmit(t *testing.T) {
	const top = 1<<64 - 1
	for _, c := range []struct {
		writable, write bool
		offset, length  uint64
		want            error
	}{
		{true, true, 0, 100, nil}, {true, true, 100, 0, nil}, {true, true, 99, 1, nil}, {false, false, 0, 100, nil},
		{false, true, 0, 1, Refused}, {true, true, 0, 101, InvalidArgument}, {true, true, 100, 1, InvalidArgument},
		{true, true, 1, 100, InvalidArgument}, {true, false, top, 1, InvalidArgument}, {true, false, top, 2, InvalidArgument},
		{true, false, 1, top, InvalidArgument}, {true, false, 0, top, InvalidArgument}, {false, true, 101, 0, InvalidArgument},
	} {
		own, remote := Region{Length: 100, Writable: c.writable}, RemoteRegion{Length: 100, Writable: c.writable}
		for _, err := range []error{own.Admit(c.write, c.offset, c.length), remote.Admit(c.write, c.offset, c.length)} {
			if !errors.Is(err, c.want) && (err != nil || c.want != nil) {
				t.Errorf("%+v: %v", c, err)
			}
		}
	}
}

func TestLimitsParseOps(t *testing.T) {
	good := Op{Kind: Write, Length: 1000}
	for _, c := range []struct {
		limits MoveLimits
		frame  []byte
		ok     bool
	}{
		{MoveLimits{}, good.Append(nil), true},
		{MoveLimits{MaxOp: 1000}, good.Append(nil), true},
		{MoveLimits{MaxOp: 999}, good.Append(nil), false},
		{MoveLimits{}, good.Append(nil)[1:], false},
		{MoveLimits{}, (&Op{Kind: Write, Length: 4<<20 + 1}).Append(nil), false},
		{MoveLimits{}, (&Op{Kind: Flush, Length: 1}).Append(nil), false},
		{MoveLimits{NeedsFlush: true}, (&Op{Kind: Flush, Length: 1}).Append(nil), true},
	} {
		if _, err := c.limits.ParseOp(c.frame); (err == nil) != c.ok || err != nil && CodeOf(err) != InvalidArgument {
			t.Errorf("%+v, %d bytes: %v", c.limits, len(c.frame), err)
		}
	}
	if n := len((&Op{Event: new([EventBytes]byte)}).Append(nil)); n != MaxOpFrame {
		t.Errorf("the largest op has %d bytes, not %d", n, MaxOpFrame)
	}
}

func TestMoveIsDescribedToPeople(t *testing.T) {
	for _, d := range []Description{{Name: "m"}, {Name: "m", Features: []Feature{FeatureMove}}} {
		var out bytes.Buffer
		answer(d, []string{"--describe"}, &out, &out)
		var got struct {
			Move *struct {
				MaxOp int `json:"max_op"`
				Local []string
			}
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if d.Has(FeatureMove) != (got.Move != nil) || got.Move != nil && (got.Move.MaxOp != 4<<20 || len(got.Move.Local) != 1 || got.Move.Local[0] != "host") {
			t.Errorf("%v: %s", d.Features, out.String())
		}
	}
}
