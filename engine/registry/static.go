package registry

import (
	"context"
	"maps"
	"slices"

	"github.com/hawser-transport/hawser/engine/internal/nearest"
	"github.com/hawser-transport/hawser/sdk"
)

// NewStatic returns a registry that knows the names of a table, which it
// copies. A name that the table does not have and that is an address, host:port,
// is that address. It is an error if one of the addresses is not host:port.
func NewStatic(addresses map[string]string) (Registry, error) {
	s := &static{addresses: maps.Clone(addresses), names: slices.Sorted(maps.Keys(addresses))}
	for _, name := range s.names {
		if err := checkAddress("the address of "+name, addresses[name]); err != nil {
			return nil, err
		}
	}
	return s, nil
}

type static struct {
	addresses map[string]string
	names     []string // sorted
}

func (s *static) Resolve(_ context.Context, name string) (string, error) {
	if address, ok := s.addresses[name]; ok {
		return address, nil
	}
	if checkAddress("the peer's name", name) == nil {
		return name, nil
	}
	return "", sdk.Errorf(sdk.InvalidArgument, "registry.static has no peer %.300q%s", name, nearest.Hint(name, s.names))
}

// Register has nothing to publish: the table is the truth.
func (s *static) Register(context.Context, Self) error { return nil }

func (s *static) Close() error { return nil }
