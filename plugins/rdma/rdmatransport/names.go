package rdmatransport

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/rail"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Settings name a device, mlx5_0, or one of its ports, mlx5_0/1: of verbs' 63
// bytes at most, and numbers from 1 to 255.
const (
	namePattern = `^[!-.0-~]{1,63}(/[1-9][0-9]{0,2})?$` // errors show it to people
	maxPort     = 255
	nameForm    = "a device, as mlx5_0, or a port with its number from 1 to 255, as mlx5_0/1"
)

var nameLike = regexp.MustCompile(namePattern)

func validName(name string) bool {
	_, port, _ := strings.Cut(name, "/")
	number, _ := strconv.Atoi(port)
	return nameLike.MatchString(name) && number <= maxPort
}

// correctNames is what to do about names that this machine does not have.
const correctNames = "correct the settings, or leave the name out; `rdma link` and `ip address` show what there is"

// gidNames are the GIDs that are wanted, by the name of a device or port.
type gidNames map[string]rail.Want

// UnmarshalJSON implements json.Unmarshaler. An error says of which name.
func (g *gidNames) UnmarshalJSON(b []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return fmt.Errorf("gids: %w", err)
	}
	*g = make(gidNames, len(raw))
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		want, err := parseWant(raw[name])
		if err != nil {
			return fmt.Errorf("gids: %s: %w", name, err)
		}
		(*g)[name] = want
	}
	return nil
}

// parseWant reads a GID's index or address.
func parseWant(raw json.RawMessage) (rail.Want, error) {
	index, text := -1, ""
	if json.Unmarshal(raw, &index) == nil && index >= 0 && index <= maxGIDIndex {
		return rail.Want{Index: index}, nil
	}
	if json.Unmarshal(raw, &text) == nil {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.IsUnspecified() {
			return rail.Want{Index: -1, Addr: a}, nil
		}
	}
	return rail.Want{}, fmt.Errorf("%s is neither a GID's index, 0 to %d, nor its address", raw, maxGIDIndex)
}

// checkNames checks the form of all names, which needs no machine.
func (s *settings) checkNames() error {
	for i, name := range s.Devices {
		if !validName(name) {
			return fmt.Errorf("devices holds %q, must be %s", name, nameForm)
		}
		device, _, _ := strings.Cut(name, "/")
		for _, before := range s.Devices[:i] {
			if before == name || before == device {
				return fmt.Errorf("devices holds %q after %q, which it is a part of: leave it out, or put it first", name, before)
			}
		}
	}
	for _, name := range s.names()["gids"] {
		if !validName(name) {
			return fmt.Errorf("gids has the name %q, must be %s", name, nameForm)
		}
	}
	return nil
}

// names are all that the settings name, by key.
func (s *settings) names() map[string][]string {
	return map[string][]string{"devices": s.Devices, "gids": slices.Sorted(maps.Keys(s.GIDs))}
}

// strangers says which names are of devices that this machine does not have.
func (s *settings) strangers(infos []verbs.Info) (faults []error) {
	there := "no device at all"
	if len(infos) > 0 {
		there = joined(infos, func(i verbs.Info) string { return i.Name })
	}
	return s.missing(there, func(device, _ string) bool {
		return slices.ContainsFunc(infos, func(i verbs.Info) bool { return i.Name == device })
	})
}

// strange says which names are of ports that this device does not have, and
// which GIDs are of none that its ports have. A port that is down may have lost
// its own.
func (s *settings) strange(device string, all []verbs.Port) (faults []error) {
	number := func(p verbs.Port) string { return strconv.Itoa(p.Number) }
	faults = s.missing(device+" with port "+joined(all, number), func(of, port string) bool {
		return of != device || port == "" || slices.ContainsFunc(all, func(p verbs.Port) bool { return number(p) == port })
	})
	for _, p := range all {
		name := rail.Port{NIC: device, Number: p.Number}.Name()
		key, named := s.gidKey(device, name)
		if _, used := s.rank(device, name); !named || !used || !p.Active {
			continue
		}
		if _, err := rail.Choose(p.GIDs, s.GIDs[key]); err != nil {
			there := joined(p.GIDs, func(g verbs.GID) string { return fmt.Sprintf("%d %s", g.Index, g.Addr.Unmap()) })
			faults = append(faults, fmt.Errorf("gids: %s: port %s has %w, and there is %s", key, name, err, there))
		}
	}
	return faults
}

// missing says of each key which of its names are not there, and what is.
func (s *settings) missing(there string, has func(device, port string) bool) (faults []error) {
	names := s.names()
	for _, key := range slices.Sorted(maps.Keys(names)) {
		absent := slices.DeleteFunc(slices.Clone(names[key]), func(name string) bool {
			device, port, _ := strings.Cut(name, "/")
			return has(device, port)
		})
		if len(absent) > 0 {
			faults = append(faults, fmt.Errorf("%s names %s, and there is %s", key, strings.Join(absent, ", "), there))
		}
	}
	return faults
}

// gidKey is the name in gids that counts for a port.
func (s *settings) gidKey(device, port string) (key string, named bool) {
	for _, key := range []string{port, device} {
		if _, ok := s.GIDs[key]; ok {
			return key, true
		}
	}
	return "", false
}

// misnamed is the error for names that this machine does not have: which a
// person has to correct, and not what the machine lacks.
func misnamed(faults []error) error {
	var text []string
	for _, err := range faults {
		text = append(text, err.Error())
	}
	return errors.New(strings.Join(text, "; ") + ": " + correctNames)
}

func joined[T any](list []T, text func(T) string) string {
	var s []string
	for _, x := range list {
		s = append(s, text(x))
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}
