package frame

import (
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// What the frames of docs/protocol.md have in common: a session, and the low
// half of the receiver's incarnation.
const (
	goldenSession = 0x1122334455667788
	goldenEpoch   = 0x99AABBCCDDEEFF00
)

// golden is the layout, byte for byte. docs/protocol.md quotes these lines.
var golden = []struct {
	name    string
	hex     string
	header  Header
	payload string
}{
	{
		name: "NOTIFY_COMPAT, protocol 1: seq 5, name ab, message xyz",
		hex: `4D434B43 01 0A 0000 8877665544332211 0000000000000000 0500000000000000 0000000000000000 0D000000
		      02000000 6162 03000000 78797A`,
		header:  Header{Type: NotifyCompat, Session: goldenSession, Seq: 5},
		payload: "02000000 6162 03000000 78797A",
	},
	{
		name: "NOTIFY_COMPAT, protocol 2: seq 5, floor 3, name ab, message xyz",
		hex: `4D434B43 01 0A 0100 8877665544332211 00FFEEDDCCBBAA99 0500000000000000 0300000000000000 0D000000
		      02000000 6162 03000000 78797A`,
		header:  Header{Type: NotifyCompat, Flags: NeedsAck, Session: goldenSession, Epoch: goldenEpoch, Seq: 5, Ack: 3},
		payload: "02000000 6162 03000000 78797A",
	},
	{
		name: "CTRL_ACK: the third of its session, cumulative 41, 43 and 45 to 50, room up to 1065 and 8 MiB",
		hex: `4D434B43 01 09 0000 8877665544332211 00FFEEDDCCBBAA99 0300000000000000 2900000000000000 1C000000
		      2904000000000000 0000800000000000 0200 0000 0200 0100 0400 0600`,
		header:  Header{Type: CtrlAck, Session: goldenSession, Epoch: goldenEpoch, Seq: 3, Ack: 41},
		payload: "2904000000000000 0000800000000000 0200 0000 0200 0100 0400 0600",
	},
	{
		name: "CTRL_ACK: the fourth, cumulative 50, nothing beyond, room 0",
		hex: `4D434B43 01 09 0000 8877665544332211 00FFEEDDCCBBAA99 0400000000000000 3200000000000000 14000000
		      3200000000000000 0000000000000000 0000 0000`,
		header:  Header{Type: CtrlAck, Session: goldenSession, Epoch: goldenEpoch, Seq: 4, Ack: 50},
		payload: "3200000000000000 0000000000000000 0000 0000",
	},
	{
		name:   "SESSION_CLOSE, protocol 2",
		hex:    `4D434B43 01 06 0000 8877665544332211 00FFEEDDCCBBAA99 0000000000000000 0000000000000000 00000000`,
		header: Header{Type: SessionClose, Session: goldenSession, Epoch: goldenEpoch},
	},
	{
		name:   "CREDIT_REQUEST, protocol 2: floor 42",
		hex:    `4D434B43 01 03 0100 8877665544332211 00FFEEDDCCBBAA99 0000000000000000 2A00000000000000 00000000`,
		header: Header{Type: CreditRequest, Flags: NeedsAck, Session: goldenSession, Epoch: goldenEpoch, Ack: 42},
	},
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGoldenFrames(t *testing.T) {
	for _, c := range golden {
		t.Run(c.name, func(t *testing.T) {
			want, payload := unhex(t, c.hex), unhex(t, c.payload)
			if got := c.header.Append(nil, payload); !reflect.DeepEqual(got, want) {
				t.Errorf("encoded\n%X, want\n%X", got, want)
			}
			h, p, err := Decode(want)
			if err != nil || h != c.header || string(p) != string(payload) {
				t.Errorf("decoded %+v %X %v", h, p, err)
			}
		})
	}
	if n := len(unhex(t, golden[0].hex)); n != 57 {
		t.Errorf("the golden frame has %d bytes, want 57", n)
	}
}

func TestGoldenRaw(t *testing.T) {
	want := unhex(t, "02000000 6162 03000000 78797A")
	if got := AppendRaw(nil, "ab", []byte("xyz")); string(got) != string(want) {
		t.Errorf("encoded %X, want %X", got, want)
	}
	name, msg, err := DecodeRaw(want, true)
	if err != nil || string(name) != "ab" || string(msg) != "xyz" {
		t.Errorf("decoded %q %q %v", name, msg, err)
	}
}

func TestGoldenAck(t *testing.T) {
	for _, c := range []struct {
		at   int
		want Ack
	}{
		{2, Ack{Cumulative: 41, RoomSeq: 1065, RoomBytes: 8 << 20, Ranges: []Range{{43, 43}, {45, 50}}}},
		{3, Ack{Cumulative: 50, RoomSeq: 50}},
	} {
		payload := unhex(t, golden[c.at].payload)
		if got := c.want.AppendPayload(nil); string(got) != string(payload) {
			t.Errorf("encoded %X, want %X", got, payload)
		}
		got, err := DecodeAck(golden[c.at].header.Ack, payload, nil)
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("decoded %+v %v, want %+v", got, err, c.want)
		}
	}
}
