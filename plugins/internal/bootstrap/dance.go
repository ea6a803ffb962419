package bootstrap

import (
	"context"
	"net"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Offering runs the exchange for a target and returns the address to dial and
// what to say there.
func Offering(ctx context.Context, t sdk.Target, instance uint64, exchange sdk.Exchange) (addr string, j Join, err error) {
	offer := Offer{Token: NewToken(), Generation: t.Generation, Instance: instance, From: t.Local, To: t.Peer}
	reply, err := exchange(ctx, offer.Marshal())
	if err != nil {
		code := sdk.CodeOf(err)
		if code == 0 {
			code = sdk.Unavailable
		}
		return "", j, sdk.Errorf(code, "bootstrap with %s: %w", PeerName(t), err)
	}
	answer, err := ParseAnswer(reply)
	if err != nil {
		return "", j, err
	}
	if answer.Generation != t.Generation {
		return "", j, sdk.Errorf(sdk.Refused, "answer is of generation %d, not %d", answer.Generation, t.Generation)
	}
	if err := address.Check(answer.Address); err != nil {
		return "", j, sdk.Errorf(sdk.Refused, "answer: %w", err)
	}
	return answer.Address, Join{
		Kind: kindFor(t.Use), Instance: answer.Instance, Generation: answer.Generation,
		Answered: answer.Token, Offered: offer.Token,
	}, nil
}

// Answering checks an offer for a target and returns the answer to it.
func Answering(t sdk.Target, instance uint64, addr string, raw []byte) (Offer, Answer, error) {
	offer, err := ParseOffer(raw)
	if err == nil {
		err = offer.Check(t)
	}
	return offer, Answer{Token: NewToken(), Generation: t.Generation, Instance: instance, Address: addr}, err
}

// Expected refuses a dialed connection of another identity than the target's.
// A transport without keys knows no identities, and carries in clear.
func Expected(t sdk.Target, conn net.Conn) error {
	if got := mtls.Identity(conn); got != "" && t.PeerIdentity != "" && got != t.PeerIdentity {
		return sdk.Errorf(sdk.Refused, "the certificate of %s is there, not that of %s, whose engine this endpoint is for", got, t.PeerIdentity)
	}
	return nil
}

// PeerName names a target's peer in messages.
func PeerName(t sdk.Target) string {
	name := t.PeerName
	if name == "" {
		name = "incarnation " + t.Peer.Short()
	}
	if addr := t.Remote[address.Attribute]; addr != "" {
		name += " at " + addr
	}
	return name
}
