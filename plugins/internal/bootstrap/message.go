package bootstrap

import (
	"encoding/binary"

	"github.com/hawser-transport/hawser/sdk"
)

// Version is the version of offers, answers and join messages. A message of
// another one is refused; bytes after the known fields are ignored, so that
// fields can be added.
const Version = 1

const (
	offerLen  = 1 + 16 + 8 + 8 + 16 + 16
	answerLen = 1 + 16 + 8 + 8 + 1
)

// Offer is the connecting side's half.
type Offer struct {
	Token      Token
	Generation uint64
	Instance   uint64
	From, To   sdk.Incarnation
}

// Marshal encodes the offer.
func (o Offer) Marshal() []byte {
	b := make([]byte, 0, offerLen)
	b = append(b, Version)
	b = append(b, o.Token[:]...)
	b = binary.LittleEndian.AppendUint64(b, o.Generation)
	b = binary.LittleEndian.AppendUint64(b, o.Instance)
	b = append(b, o.From[:]...)
	return append(b, o.To[:]...)
}

// ParseOffer decodes an offer.
func ParseOffer(b []byte) (Offer, error) {
	var o Offer
	if err := checkHead("offer", b, offerLen); err != nil {
		return o, err
	}
	copy(o.Token[:], b[1:])
	o.Generation = binary.LittleEndian.Uint64(b[17:])
	o.Instance = binary.LittleEndian.Uint64(b[25:])
	copy(o.From[:], b[33:])
	copy(o.To[:], b[49:])
	return o, nil
}

// Check says whether the offer belongs to the target that the engine accepts
// it for. The engines agree on both, so a difference is a mixed-up message.
func (o Offer) Check(t sdk.Target) error {
	switch {
	case o.Generation != t.Generation:
		return sdk.Errorf(sdk.Refused, "offer is of generation %d, not %d", o.Generation, t.Generation)
	case o.From != t.Peer:
		return sdk.Errorf(sdk.Refused, "offer is from incarnation %s, not %s", o.From.Short(), t.Peer.Short())
	case o.To != t.Local:
		return sdk.Errorf(sdk.Refused, "offer is to incarnation %s, this is %s", o.To.Short(), t.Local.Short())
	}
	return nil
}

// Answer is the accepting side's half.
type Answer struct {
	Token      Token
	Generation uint64
	Instance   uint64
	// Address is where the accepting instance listens.
	Address string
}

// Marshal encodes the answer. The address must not be longer than address.Max.
func (a Answer) Marshal() []byte {
	b := make([]byte, 0, answerLen+len(a.Address))
	b = append(b, Version)
	b = append(b, a.Token[:]...)
	b = binary.LittleEndian.AppendUint64(b, a.Generation)
	b = binary.LittleEndian.AppendUint64(b, a.Instance)
	b = append(b, byte(len(a.Address)))
	return append(b, a.Address...)
}

// ParseAnswer decodes an answer.
func ParseAnswer(b []byte) (Answer, error) {
	var a Answer
	if err := checkHead("answer", b, answerLen); err != nil {
		return a, err
	}
	copy(a.Token[:], b[1:])
	a.Generation = binary.LittleEndian.Uint64(b[17:])
	a.Instance = binary.LittleEndian.Uint64(b[25:])
	n := int(b[33])
	if n == 0 || len(b) < answerLen+n {
		return a, sdk.Errorf(sdk.Refused, "answer of %d bytes has no room for an address of %d", len(b), n)
	}
	a.Address = string(b[answerLen : answerLen+n])
	return a, nil
}

func checkHead(what string, b []byte, least int) error {
	if len(b) == 0 {
		return sdk.Errorf(sdk.Refused, "%s is empty", what)
	}
	if b[0] != Version {
		return sdk.Errorf(sdk.Refused, "%s has version %d, this build speaks %d", what, b[0], Version)
	}
	if len(b) < least {
		return sdk.Errorf(sdk.Refused, "%s of %d bytes is cut short, want %d", what, len(b), least)
	}
	return nil
}
