package mapping

import (
	"bytes"
	"fmt"
	"maps"
	"slices"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/internal/bounds"
)

// MaxHandle is the largest [Source.Handle] in bytes.
const MaxHandle = 4096

// Key names one publication of a range of a provider's memory. An address
// alone does not: it comes back with other memory behind it.
type Key struct {
	// Provider is the life of the engine that publishes the memory.
	Provider sdk.Incarnation
	// Base is the range's first address there.
	Base uint64
	// Capability is the publication's identity; zero if an older peer gave none.
	Capability sdk.Capability
}

// String is for logs: it gives no capability away.
func (k Key) String() string {
	c := "no capability"
	if !k.Capability.IsZero() {
		c = "capability " + k.Capability.Short()
	}
	return fmt.Sprintf("%s@%#x (%s)", k.Provider.Short(), k.Base, c)
}

func (k Key) place() place { return place{k.Provider, k.Base} }

// place is where a provider's memory is: at most one publication at a time.
type place struct {
	provider sdk.Incarnation
	base     uint64
}

// Kind says what sort of handle a source has, and what follows from it.
type Kind struct {
	// Name tells kinds of one importer apart, and is for people.
	Name string
	// UniqueHandles: two handles of equal bytes mean the same allocation, for
	// ever. Without it the bytes repeat (file descriptors, recycled handles), and
	// equal bytes say nothing. It matters only where there is no capability.
	UniqueHandles bool
	// ExclusiveBase: what was imported of a base must be closed before the base
	// is imported again. An import then waits for its predecessors.
	ExclusiveBase bool
}

// Source is what a provider's descriptor says of one range.
type Source struct {
	Key
	// Length of the range in bytes, at least 1; the range ends at or below 2^64.
	Length uint64
	// Kind of the handle.
	Kind Kind
	// Handle is what the importer imports, at most [MaxHandle] bytes.
	Handle []byte
	// Attributes is what else the importer needs, within the limits of
	// [sdk.Attributes]. With a capability they, and the handle, may change from
	// version to version: a provider's plugin has restarted.
	Attributes sdk.Attributes
	// Version of the descriptor that says so. A provider's versions grow.
	Version uint64
}

// check says what is wrong with the source, if anything.
func (s Source) check() error {
	switch {
	case s.Provider.IsZero():
		return sdk.Errorf(sdk.InvalidArgument, "mapping %s: it names no provider", s.Key)
	case s.Length == 0:
		return sdk.Errorf(sdk.InvalidArgument, "mapping %s: its length is 0", s.Key)
	case s.Base+(s.Length-1) < s.Base:
		return sdk.Errorf(sdk.InvalidArgument, "mapping %s: %d bytes from there go beyond 2^64", s.Key, s.Length)
	case len(s.Handle) > MaxHandle:
		return sdk.Errorf(sdk.TooLarge, "mapping %s: its handle has %d bytes, the limit is %d", s.Key, len(s.Handle), MaxHandle)
	}
	if err := bounds.CheckAttributes(s.Attributes); err != nil {
		return sdk.Errorf(sdk.TooLarge, "mapping %s: %w", s.Key, err)
	}
	return nil
}

// clone returns a copy that shares nothing with s.
func (s Source) clone() Source {
	s.Handle, s.Attributes = bytes.Clone(s.Handle), maps.Clone(s.Attributes)
	return s
}

func (s Source) equal(o Source) bool {
	return s.Key == o.Key && s.Length == o.Length && s.Kind == o.Kind && s.Version == o.Version &&
		slices.Equal(s.Handle, o.Handle) && maps.Equal(s.Attributes, o.Attributes)
}

// verdict is what becomes of the present source of a place, and of what was
// imported of it, when another source of the place is announced.
type verdict int

const (
	same    verdict = iota // nothing
	keep                   // a newer description of the same memory
	replace                // other memory, or perhaps other memory
)

// judge compares the source that is announced with the present one.
func judge(present, next Source) (verdict, error) {
	switch {
	case next.Version < present.Version:
		return same, sdk.Errorf(sdk.StaleCapability, "mapping %s: version %d of the descriptor comes after version %d",
			next.Key, next.Version, present.Version)
	case next.Version == present.Version && next.equal(present):
		return same, nil
	case next.Version == present.Version:
		return same, sdk.Errorf(sdk.InvalidArgument, "mapping %s: version %d of the descriptor has come before with other contents (%s)",
			next.Key, next.Version, present.Key)
	case next.Key != present.Key:
		return replace, nil
	case !next.Capability.IsZero() && next.Length != present.Length:
		return same, sdk.Errorf(sdk.InvalidArgument, "mapping %s: its length was %d and is %d with the same capability; another length needs another one",
			next.Key, present.Length, next.Length)
	case !next.Capability.IsZero():
		return keep, nil
	case next.Kind == present.Kind && next.Kind.UniqueHandles && next.Length == present.Length && bytes.Equal(next.Handle, present.Handle):
		return keep, nil
	default:
		return replace, nil
	}
}

// within reports whether a range lies within the first size bytes, without
// wrapping at 2^64.
func within(offset, length, size uint64) bool { return offset <= size && length <= size-offset }
