package bootstrap

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func TestMessagesRoundTripAndTruncations(t *testing.T) {
	o := Offer{Token: NewToken(), Generation: 5, Instance: 6, From: sdk.Incarnation{1}, To: sdk.Incarnation{2}}
	if got, err := ParseOffer(o.Marshal()); err != nil || got != o {
		t.Errorf("offer: %+v, %v", got, err)
	}
	a := Answer{Token: NewToken(), Generation: 5, Instance: 6, Address: "[::1]:80"}
	if got, err := ParseAnswer(a.Marshal()); err != nil || got != a {
		t.Errorf("answer: %+v, %v", got, err)
	}
	j := Join{Kind: Frames, Instance: 1, Generation: 2, Answered: NewToken(), Offered: NewToken()}
	if got, v := ParseJoin(j.Marshal()); v != Welcome || got != j {
		t.Errorf("join: %+v, %v", got, v)
	}
	for n := range o.Marshal() {
		if _, err := ParseOffer(o.Marshal()[:n]); !errors.Is(err, sdk.Refused) {
			t.Errorf("offer cut to %d bytes: %v", n, err)
		}
	}
	for n := range a.Marshal() {
		if _, err := ParseAnswer(a.Marshal()[:n]); !errors.Is(err, sdk.Refused) {
			t.Errorf("answer cut to %d bytes: %v", n, err)
		}
	}
	for n := range j.Marshal() {
		if _, v := ParseJoin(j.Marshal()[:n]); v != NotHawser {
			t.Errorf("join cut to %d bytes: %v", n, v)
		}
	}
	for v := Welcome; v < verdicts; v++ {
		if got, err := ParseVerdict(v.Marshal()); err != nil || got != v {
			t.Errorf("verdict %v: %v, %v", v, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(Offer{}.Marshal())
	f.Add(Answer{Address: "h:1"}.Marshal())
	f.Add(Join{Kind: Probe}.Marshal())
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := ParseOffer(b); err == nil && !bytes.Equal(o.Marshal(), b[:offerLen]) {
			t.Errorf("offer %x encodes to %x", b, o.Marshal())
		}
		if a, err := ParseAnswer(b); err == nil && !bytes.HasPrefix(b, a.Marshal()) {
			t.Errorf("answer %x encodes to %x", b, a.Marshal())
		}
		if j, v := ParseJoin(b); v == Welcome && !bytes.Equal(j.Marshal(), b) {
			t.Errorf("join %x encodes to %x", b, j.Marshal())
		}
	})
}

func TestPendingIsBoundedAndSingleUse(t *testing.T) {
	p := NewPending[int](1)
	first := NewToken()
	o := Offer{Token: NewToken(), Generation: 9}
	if err := p.Add(first, o, sdk.Target{}, 1); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < MaxPending; i++ {
		if err := p.Add(NewToken(), Offer{}, sdk.Target{}, i); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Add(NewToken(), Offer{}, sdk.Target{}, 0); !errors.Is(err, sdk.Busy) {
		t.Errorf("one too many: %v", err)
	}
	j := Join{Kind: Frames, Instance: 1, Generation: 9, Answered: first, Offered: o.Token}
	if e, v := p.Claim(j, ""); v != Welcome || e != 1 {
		t.Errorf("Claim: %d, %v", e, v)
	}
	if _, v := p.Claim(j, ""); v != UnknownToken {
		t.Errorf("a second Claim: %v", v)
	}
	if p.Remove(first) {
		t.Error("Remove found what was claimed")
	}
}

// Whoever learned the tokens, but is somebody else, gets nothing, and costs the
// expected peer nothing.
func TestPendingIsForOneIdentity(t *testing.T) {
	p := NewPending[int](1)
	mine, anybodys := NewToken(), NewToken()
	o := Offer{Token: NewToken(), Generation: 9}
	if err := p.Add(mine, o, sdk.Target{PeerIdentity: "alice"}, 1); err != nil {
		t.Fatal(err)
	}
	if err := p.Add(anybodys, o, sdk.Target{}, 2); err != nil {
		t.Fatal(err)
	}
	j := Join{Kind: Frames, Instance: 1, Generation: 9, Answered: mine, Offered: o.Token}
	for _, who := range []string{"mallory", ""} {
		if _, v := p.Claim(j, who); v != WrongIdentity {
			t.Errorf("%q: %v", who, v)
		}
	}
	if e, v := p.Claim(j, "alice"); v != Welcome || e != 1 {
		t.Errorf("alice: %d, %v", e, v)
	}
	j.Answered = anybodys
	if e, v := p.Claim(j, "bob"); v != Welcome || e != 2 {
		t.Errorf("without a name to expect: %d, %v", e, v)
	}
}

// A connection is for frames or for memory, as its endpoint is.
func TestPendingIsForOneUse(t *testing.T) {
	p := NewPending[int](1)
	o := Offer{Token: NewToken(), Generation: 9}
	for use, kinds := range map[sdk.Use][2]Kind{sdk.UseFrames: {Memory, Frames}, sdk.UseMemory: {Frames, Memory}} {
		j := Join{Kind: kinds[0], Instance: 1, Generation: 9, Answered: NewToken(), Offered: o.Token}
		if err := p.Add(j.Answered, o, sdk.Target{Use: use}, 1); err != nil {
			t.Fatal(err)
		}
		if _, v := p.Claim(j, ""); v != WrongKind {
			t.Errorf("%v for %v: %v", kinds[0], use, v)
		}
		j.Kind = kinds[1]
		if _, v := p.Claim(j, ""); v != Welcome {
			t.Errorf("%v for %v: %v", kinds[1], use, v)
		}
	}
}

func TestGenerationsAreOfAUseAndALane(t *testing.T) {
	var g Generations
	if err := g.Admit(sdk.Target{Generation: 9, Use: sdk.UseMemory}, Accepting); err != nil {
		t.Fatal(err)
	}
	for _, other := range []sdk.Target{{Use: sdk.UseFrames}, {Use: sdk.UseMemory, Lane: 1}, {Use: sdk.UseMemory, Path: "x"}} {
		if err := g.Admit(other, Accepting); err != nil {
			t.Errorf("%+v: %v", other, err)
		}
	}
	if err := g.Admit(sdk.Target{Use: sdk.UseMemory}, Accepting); !errors.Is(err, sdk.Refused) {
		t.Errorf("older: %v", err)
	}
}

func TestGenerationsRefuseOlder(t *testing.T) {
	var g Generations
	admit := func(gen uint64, side Side) error { return g.Admit(sdk.Target{Generation: gen}, side) }
	for _, again := range []string{"newer", "equal"} {
		if err := admit(3, Accepting); err != nil {
			t.Errorf("%s: %v", again, err)
		}
	}
	if err := admit(1, Connecting); err != nil {
		t.Errorf("the other side counts on its own: %v", err)
	}
	if err := admit(2, Accepting); !errors.Is(err, sdk.Refused) {
		t.Errorf("older: %v", err)
	}
	for i := range 2 * maxGenerations {
		_ = g.Admit(sdk.Target{Peer: sdk.Incarnation{byte(i), byte(i >> 8)}}, Accepting)
	}
	if len(g.newest) > maxGenerations {
		t.Errorf("%d generations remembered", len(g.newest))
	}
}
