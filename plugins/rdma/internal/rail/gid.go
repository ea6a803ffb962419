package rail

import (
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Want is what the user says about a port's GID: an index, an address, or
// nothing.
type Want struct {
	Index int // -1 for none
	Addr  netip.Addr
}

// Any wants nothing in particular.
var Any = Want{Index: -1}

// Choose picks the GID that a port uses: the wanted one, else RoCE v2 over v1,
// global over link-local, IPv4 over IPv6, and the first of equals.
func Choose(gids []verbs.GID, want Want) (verbs.GID, error) {
	usable := candidates(gids, want)
	if len(usable) == 0 {
		switch {
		case want.Index >= 0:
			return verbs.GID{}, fmt.Errorf("no GID of index %d", want.Index)
		case want.Addr.IsValid():
			return verbs.GID{}, fmt.Errorf("no GID %s", want.Addr)
		}
		return verbs.GID{}, fmt.Errorf("no GID; give its network device an address")
	}
	return slices.MaxFunc(usable, func(a, b verbs.GID) int {
		if d := merit(a) - merit(b); d != 0 {
			return d
		}
		return b.Index - a.Index
	}), nil
}

// candidates are the GIDs that can be chosen.
func candidates(gids []verbs.GID, want Want) (usable []verbs.GID) {
	for _, g := range gids {
		switch {
		case !g.Addr.IsValid() || g.Addr.IsUnspecified():
			continue
		case want.Index >= 0 && g.Index != want.Index:
			continue
		case want.Addr.IsValid() && g.Addr.Unmap() != want.Addr.Unmap():
			continue
		}
		usable = append(usable, g)
	}
	return usable
}

// Why says, for people, what speaks for the GID that Choose has picked against
// the others of the port.
func Why(gids []verbs.GID, want Want, chosen verbs.GID) string {
	if want.Index >= 0 || want.Addr.IsValid() {
		return "as the settings say"
	}
	var reasons []string
	beaten := map[int]bool{} // by the merit that the other lacks
	others := candidates(gids, want)
	for _, g := range others {
		if g.Index != chosen.Index {
			// The highest bit that differs decides.
			beaten[1<<bits.Len(uint(merit(chosen)^merit(g)))>>1] = true
		}
	}
	for _, r := range []struct {
		bit  int
		text string
	}{{4, "RoCE v2 over v1"}, {2, "global over link-local"}, {1, "IPv4 over IPv6"}, {0, "the first of equals"}} {
		if beaten[r.bit] {
			reasons = append(reasons, r.text)
		}
	}
	if len(reasons) == 0 {
		return "the only one"
	}
	return fmt.Sprintf("of %d: %s", len(others), strings.Join(reasons, ", "))
}

func merit(g verbs.GID) int {
	m := 0
	if g.Type == verbs.GIDRoCEv2 {
		m += 4
	}
	if !g.Addr.IsLinkLocalUnicast() {
		m += 2
	}
	if g.Addr.Is4In6() {
		m++
	}
	return m
}
