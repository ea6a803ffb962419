// Package descriptor is what a node publishes of its memory: which regions it
// has, under which capabilities, and what each transport's instance needs to
// reach them. It is JSON, so that fields can be added: a reader ignores those
// that it does not know, and a buffer of a kind that it does not know. It comes
// from a peer and is untrusted: parsing bounds and checks everything. The
// package is pure.
package descriptor

import (
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/hawser-transport/hawser/sdk"
)

// Bounds of a descriptor.
const (
	MaxBuffers        = 1024
	MaxTombstones     = 256
	MaxWays           = 32 // per buffer
	MaxAttributes     = 64 // per way
	MaxAttributeBytes = 16 << 10
	maxTransportName  = 32
)

// Descriptor is all that a provider publishes, at one version.
type Descriptor struct {
	Provider sdk.Incarnation
	// Version grows with every change, and is never 0.
	Version uint64
	Buffers []Buffer
	// Tombstones are capabilities that were withdrawn last, newest last.
	Tombstones []sdk.Capability
}

// Buffer is one region.
type Buffer struct {
	Base     uint64
	Length   uint64
	Kind     sdk.MemoryKind
	Device   int
	Writable bool
	// Capability is zero in descriptors of older providers.
	Capability sdk.Capability
	Ways       []Way
}

// Way is what one instance of a transport published for the region.
type Way struct {
	Transport  string
	Instance   uint64
	Attributes sdk.Attributes
}

// The JSON form. Attributes are bytes, and so in base64.
type (
	document struct {
		Provider   string           `json:"provider"`
		Version    uint64           `json:"version"`
		Buffers    []buffer         `json:"buffers"`
		Tombstones []sdk.Capability `json:"tombstones,omitempty"`
	}
	buffer struct {
		Address     uint64          `json:"address"`
		Length      uint64          `json:"length"`
		Kind        string          `json:"kind"`
		Device      int             `json:"device,omitempty"`
		Permissions string          `json:"permissions"`
		Capability  *sdk.Capability `json:"capability_id,omitempty"`
		Attributes  []way           `json:"attributes,omitempty"`
	}
	way struct {
		Transport string            `json:"transport"`
		Instance  uint64            `json:"instance"`
		Values    map[string][]byte `json:"values"`
	}
)

// Encode returns the JSON form. It is the same for equal descriptors.
func (d *Descriptor) Encode() []byte {
	doc := document{Provider: d.Provider.String(), Version: d.Version, Buffers: []buffer{}, Tombstones: d.Tombstones}
	for _, b := range d.Buffers {
		j := buffer{Address: b.Base, Length: b.Length, Kind: b.Kind.String(), Device: b.Device, Permissions: "r"}
		if b.Writable {
			j.Permissions = "rw"
		}
		if !b.Capability.IsZero() {
			j.Capability = &b.Capability
		}
		for _, w := range b.Ways {
			values := make(map[string][]byte, len(w.Attributes))
			for k, v := range w.Attributes {
				values[k] = []byte(v)
			}
			j.Attributes = append(j.Attributes, way{w.Transport, w.Instance, values})
		}
		doc.Buffers = append(doc.Buffers, j)
	}
	body, err := json.Marshal(doc)
	if err != nil {
		panic("descriptor: " + err.Error()) // nothing in it can fail
	}
	return body
}

// Parse reads what Encode wrote, or what an older or later provider did.
func Parse(body []byte) (*Descriptor, error) {
	var doc document
	if err := json.Unmarshal(body, &doc); err != nil {
		return nil, refuse("not JSON of its form: %w", err)
	}
	d := &Descriptor{Version: doc.Version, Tombstones: doc.Tombstones}
	switch i, err := hex.DecodeString(doc.Provider); {
	case err != nil || len(i) != len(d.Provider):
		return nil, refuse("provider %.40q is not 32 hexadecimal digits", doc.Provider)
	case doc.Version == 0:
		return nil, refuse("it has no version")
	case len(doc.Buffers) > MaxBuffers:
		return nil, refuse("it has %d buffers, the limit is %d", len(doc.Buffers), MaxBuffers)
	case len(doc.Tombstones) > MaxTombstones:
		return nil, refuse("it has %d tombstones, the limit is %d", len(doc.Tombstones), MaxTombstones)
	default:
		copy(d.Provider[:], i)
	}
	seen := map[sdk.Capability]bool{}
	for i, j := range doc.Buffers {
		b, err := j.parse()
		if err != nil {
			return nil, refuse("buffer %d: %w", i, err)
		}
		if !b.Kind.Valid() {
			continue // a later version's
		}
		if !b.Capability.IsZero() {
			if seen[b.Capability] {
				return nil, refuse("buffer %d repeats capability %s", i, b.Capability.Short())
			}
			seen[b.Capability] = true
		}
		d.Buffers = append(d.Buffers, b)
	}
	return d, nil
}

func refuse(format string, args ...any) error {
	return sdk.Errorf(sdk.InvalidArgument, "descriptor: "+format, args...)
}

func (j *buffer) parse() (b Buffer, err error) {
	b = Buffer{Base: j.Address, Length: j.Length, Device: j.Device, Writable: strings.Contains(j.Permissions, "w")}
	for _, k := range []sdk.MemoryKind{sdk.HostMemory, sdk.DeviceMemory} {
		if j.Kind == k.String() {
			b.Kind = k
		}
	}
	if j.Capability != nil {
		b.Capability = *j.Capability
	}
	switch {
	case b.Length == 0:
		return b, sdk.Errorf(sdk.InvalidArgument, "it has no length")
	case b.Base+b.Length < b.Base:
		return b, sdk.Errorf(sdk.InvalidArgument, "its %d bytes at %#x wrap", b.Length, b.Base)
	case len(j.Attributes) > MaxWays:
		return b, sdk.Errorf(sdk.InvalidArgument, "it has attributes of %d instances, the limit is %d", len(j.Attributes), MaxWays)
	}
	for _, w := range j.Attributes {
		parsed := Way{Transport: w.Transport, Instance: w.Instance, Attributes: sdk.Attributes{}}
		for k, v := range w.Values {
			parsed.Attributes[k] = string(v)
		}
		if w.Transport == "" || len(w.Transport) > maxTransportName || w.Instance == 0 {
			return b, sdk.Errorf(sdk.InvalidArgument, "attributes of instance %d of transport %.40q", w.Instance, w.Transport)
		}
		if err := CheckAttributes(parsed.Attributes); err != nil {
			return b, err
		}
		b.Ways = append(b.Ways, parsed)
	}
	return b, nil
}

// CheckAttributes refuses what cannot stand in a descriptor.
func CheckAttributes(a sdk.Attributes) error {
	size := 0
	for k, v := range a {
		size += len(k) + len(v)
		if !utf8.ValidString(k) {
			return sdk.Errorf(sdk.InvalidArgument, "an attribute's key is not UTF-8")
		}
	}
	if len(a) > MaxAttributes || size > MaxAttributeBytes {
		return sdk.Errorf(sdk.TooLarge, "%d attributes with %d bytes, the limits are %d and %d", len(a), size, MaxAttributes, MaxAttributeBytes)
	}
	return nil
}

// Way returns what the buffer's provider's instance of a transport published,
// or nil.
func (b *Buffer) Way(transport string, instance uint64) *Way {
	for i := range b.Ways {
		if b.Ways[i].Transport == transport && b.Ways[i].Instance == instance {
			return &b.Ways[i]
		}
	}
	return nil
}

// Find returns the buffer that holds a range of a provider's memory, of a
// certain capability unless that is zero. The newest of several counts. An
// error has code [sdk.StaleCapability] and says what does not match.
func (d *Descriptor) Find(address, length uint64, c sdk.Capability) (*Buffer, error) {
	if address+length < address {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%d bytes at %#x wrap", length, address)
	}
	partly := false
	for i := range slices.Backward(d.Buffers) {
		b := &d.Buffers[i]
		if !c.IsZero() && c != b.Capability || address < b.Base || address-b.Base >= b.Length {
			continue
		}
		if length <= b.Length-(address-b.Base) {
			return b, nil
		}
		partly = true
	}
	what := "no buffer has"
	switch {
	case partly:
		what = "no single buffer holds"
	case slices.Contains(d.Tombstones, c):
		what = "capability " + c.Short() + " was withdrawn, which had"
	case !c.IsZero():
		what = "no buffer with capability " + c.Short() + " has"
	}
	return nil, sdk.Errorf(sdk.StaleCapability, "%s %d bytes at %#x in version %d of the descriptor", what, length, address, d.Version)
}
