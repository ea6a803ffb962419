package descriptor

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/sdk"
)

func some() *Descriptor {
	return &Descriptor{
		Provider: sdk.Incarnation{1, 15: 2}, Version: 7,
		Buffers: []Buffer{
			{Base: 0x1000, Length: 0x1000, Kind: sdk.HostMemory, Writable: true, Capability: sdk.Capability{1}, Ways: []Way{
				{"tcp", 3, sdk.Attributes{"k": "\xff\x00", "": ""}}, {"rdma", 4, sdk.Attributes{}},
			}},
			{Base: 0x2000, Length: 0x1000, Kind: sdk.DeviceMemory, Device: 1, Capability: sdk.Capability{2}},
			{Base: 0x9000, Length: 1, Kind: sdk.HostMemory},
		},
		Tombstones: []sdk.Capability{{9}},
	}
}

func TestRoundTrip(t *testing.T) {
	d, err := Parse(some().Encode())
	if err != nil || !reflect.DeepEqual(d, some()) {
		t.Errorf("%+v, %v", d, err)
	}
	if w := d.Buffers[0].Way("rdma", 4); w == nil || d.Buffers[0].Way("rdma", 3) != nil || d.Buffers[0].Way("tcp", 4) != nil {
		t.Errorf("way %v", w)
	}
}

// Scenario 3 for descriptors: an older reader knows fewer fields, an older
// provider has none of the newer ones.
func TestOlderReadersAndProviders(t *testing.T) {
	var old struct {
		Version uint64 `json:"version"`
		Buffers []struct {
			Address uint64 `json:"address"`
			Length  uint64 `json:"length"`
		} `json:"buffers"`
	}
	if err := json.Unmarshal(some().Encode(), &old); err != nil || len(old.Buffers) != 3 || old.Buffers[1].Address != 0x2000 {
		t.Errorf("%+v, %v", old, err)
	}
	d, err := Parse([]byte(`{"provider":"01000000000000000000000000000002","version":1,"later":{"x":[1]},
		"buffers":[{"address":4096,"length":16,"kind":"host","permissions":"rwx","later":true},
		           {"address":9,"length":16,"kind":"moon","permissions":"r"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Buffer{{Base: 4096, Length: 16, Kind: sdk.HostMemory, Writable: true}}
	if !reflect.DeepEqual(d.Buffers, want) {
		t.Errorf("%+v, the buffer of an unknown kind is to be ignored", d.Buffers)
	}
}

func TestParseRefuses(t *testing.T) {
	many := func(n int, one string) string { return strings.TrimSuffix(strings.Repeat(one+",", n), ",") }
	buffers := func(s string) string {
		return `{"provider":"01000000000000000000000000000002","version":1,"buffers":[` + s + `]}`
	}
	one := func(s string) string { return buffers(`{"address":1,"length":1,"kind":"host"` + s + `}`) }
	for body, say := range map[string]string{
		``:                    "not JSON",
		`[]`:                  "not JSON",
		`{}`:                  "provider",
		`{"provider":"0102"}`: "provider \"0102\" is not 32",
		buffers(`{}`):         "buffer 0: it has no length",
		one(`},{"address":18446744073709551615,"length":2,"kind":"host"`): "buffer 1: its 2 bytes at 0xffffffffffffffff wrap",
		one(`,"capability_id":"12"`):                                      "capability",
		one(`,"attributes":[{"transport":"","instance":1}]`):              "attributes of instance 1",
		one(`,"attributes":[{"transport":"tcp"}]`):                        "attributes of instance 0",
		one(`,"attributes":[` + many(MaxWays+1, `{}`) + `]`):              "attributes of 33 instances",
		one(`,"attributes":[{"transport":"tcp","instance":1,"values":{"k":"` + strings.Repeat("AAAA", MaxAttributeBytes/3+1) + `"}}]`):                       "the limits are",
		one(`,"capability_id":"01010101010101010101010101010101"},{"address":1,"length":1,"kind":"host","capability_id":"01010101010101010101010101010101"`): "repeats",
		buffers(many(MaxBuffers+1, `{"address":1,"length":1}`)):                                                                                              "1025 buffers",
		`{"provider":"01000000000000000000000000000002"}`:                                                                                                    "no version",
		`{"provider":"01000000000000000000000000000002","version":1,"tombstones":[` + many(MaxTombstones+1, `"01010101010101010101010101010101"`) + `]}`:     "257 tombstones",
	} {
		if _, err := Parse([]byte(body)); !errors.Is(err, sdk.InvalidArgument) || !strings.Contains(err.Error(), say) {
			t.Errorf("%.60s: %v, want %q", body, err, say)
		}
	}
}

// Scenario 45.
func TestFind(t *testing.T) {
	d := some()
	d.Buffers = append(d.Buffers, Buffer{Base: 0x1000, Length: 0x10, Kind: sdk.HostMemory, Capability: sdk.Capability{5}})
	for _, tt := range []struct {
		address, length uint64
		c               sdk.Capability
		want            int // the buffer, or -1
		say             string
	}{
		{0x1000, 0x10, sdk.Capability{}, 3, ""}, // the newest
		{0x1000, 0x11, sdk.Capability{}, 0, ""},
		{0x1000, 0x10, sdk.Capability{1}, 0, ""},
		{0x1fff, 1, sdk.Capability{}, 0, ""},
		{0x2000, 0x1000, sdk.Capability{2}, 1, ""},
		{0x2000, 0x1001, sdk.Capability{}, -1, "no single buffer holds 4097 bytes at 0x2000 in version 7"},
		{0x1fff, 2, sdk.Capability{}, -1, "no single buffer holds"}, // spans two
		{0x3000, 1, sdk.Capability{}, -1, "no buffer has 1 bytes at 0x3000"},
		{0xfff, 1, sdk.Capability{}, -1, "no buffer has"},
		{0x1000, 1, sdk.Capability{9}, -1, "capability 09000000 was withdrawn, which had"},
		{0x1000, 1, sdk.Capability{8}, -1, "no buffer with capability 08000000 has"},
		{0x2000, 1, sdk.Capability{1}, -1, "no buffer with capability 01000000 has"},
		{^uint64(0), 2, sdk.Capability{}, -1, "wrap"},
		{0x1001, ^uint64(0), sdk.Capability{}, -1, "wrap"},
	} {
		b, err := d.Find(tt.address, tt.length, tt.c)
		if tt.want >= 0 {
			if err != nil || b != &d.Buffers[tt.want] {
				t.Errorf("%#x+%d of %v: %+v, %v", tt.address, tt.length, tt.c, b, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%#x+%d of %v: %+v, %v, want %q", tt.address, tt.length, tt.c, b, err, tt.say)
		}
	}
	if _, err := d.Find(0x3000, 1, sdk.Capability{}); !errors.Is(err, sdk.StaleCapability) {
		t.Errorf("%v", err)
	}
}

// What parses can be written and parses to the same.
func FuzzParse(f *testing.F) {
	f.Add(some().Encode())
	f.Add([]byte(`{"provider":"01000000000000000000000000000002","version":1}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		d, err := Parse(body)
		if err != nil {
			return
		}
		again, err := Parse(d.Encode())
		if err != nil || fmt.Sprint(again.Buffers) != fmt.Sprint(d.Buffers) {
			t.Errorf("%+v, %v, was %+v", again, err, d)
		}
		for _, b := range d.Buffers {
			if got, err := d.Find(b.Base, b.Length, b.Capability); err != nil || got.Base > b.Base {
				t.Errorf("%+v is not found: %v", b, err)
			}
		}
	})
}
