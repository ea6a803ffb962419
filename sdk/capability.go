package sdk

import (
	"encoding/hex"
	"fmt"
)

// Capability is the identity of one publication of a region: 128 random bits
// that nothing else ever has. It says which allocation a descriptor means,
// which an address does not: a region that is registered again, or whose handle
// is replaced, or whose provider has restarted, has another. It survives a
// restart of the transports. Who knows it may use the region as its permissions
// say, so it is in no log; [Capability.Short] is for people.
//
// The zero value stands for none: descriptors of older peers have none.
type Capability [16]byte

// IsZero reports whether there is none.
func (c Capability) IsZero() bool { return c == Capability{} }

// Short returns the first eight hexadecimal digits: enough to tell
// capabilities apart in a log, not enough to use one.
func (c Capability) Short() string { return hex.EncodeToString(c[:4]) }

// String is Short: a capability that is printed by mistake gives nothing away.
func (c Capability) String() string { return c.Short() }

// MarshalText returns all 32 hexadecimal digits, for descriptors.
func (c Capability) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, c[:]), nil }

// UnmarshalText reads what MarshalText wrote. On error c is untouched.
func (c *Capability) UnmarshalText(text []byte) error {
	var b [16]byte
	if len(text) != hex.EncodedLen(len(b)) {
		return fmt.Errorf("capability: %d hexadecimal digits, not 32", len(text))
	}
	if _, err := hex.Decode(b[:], text); err != nil {
		return fmt.Errorf("capability: %w", err)
	}
	*c = b
	return nil
}
