package link

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// The carriers' names, as the two ends negotiate them. Frozen.
const (
	// CarrierRing is reserved for rings in shared memory; there are none yet.
	CarrierRing = "ring"
	// CarrierUnix is a unix stream socket, NewSocket.
	CarrierUnix = "unix"
	// CarrierGRPC is a gRPC stream of packets, NewStream.
	CarrierGRPC = "grpc"
)

// ErrNoCarrier: the two ends have no carrier in common.
var ErrNoCarrier = errors.New("link: no carrier in common")

// Negotiate picks the first of the offered carriers, best first, that is also
// supported. The reason says, for the log, why better ones were not taken; it
// is empty if the first known one was. Unknown names are ignored.
func Negotiate(offered, supported []string) (carrier, reason string, err error) {
	var seen, why []string
	for _, name := range offered {
		if slices.Contains(seen, name) {
			continue
		}
		switch name {
		case CarrierRing:
			why = append(why, name+": not implemented")
		case CarrierUnix, CarrierGRPC:
			if slices.Contains(supported, name) {
				return name, strings.Join(why, "; "), nil
			}
			why = append(why, name+": not supported here")
		default:
			continue
		}
		seen = append(seen, name)
	}
	if len(why) == 0 {
		return "", "", fmt.Errorf("%w: none offered that is known", ErrNoCarrier)
	}
	return "", "", fmt.Errorf("%w: %s", ErrNoCarrier, strings.Join(why, "; "))
}
