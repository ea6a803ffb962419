//go:build linux

package mnnvltransport

import (
	"errors"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
)

// TestReach: which handle reaches whom.
func TestReach(t *testing.T) {
	clique := func(cluster byte, n uint32) nvml.Fabric {
		return nvml.Fabric{State: nvml.FabricCompleted, Cluster: [16]byte{cluster}, Clique: n}
	}
	here := place{"m1", clique(1, 7)}
	for _, c := range []struct {
		kind    cuda.Kind
		machine string
		fabric  nvml.Fabric
		want    bool
	}{
		{cuda.Fabric, "m2", clique(1, 7), true},
		{cuda.Fabric, "m2", clique(1, 8), false},
		{cuda.Fabric, "m2", clique(2, 7), false},
		{cuda.Fabric, "m2", nvml.Fabric{}, false},
		{cuda.Fabric, "m1", nvml.Fabric{}, true},
		{cuda.PosixFD, "m1", nvml.Fabric{}, true},
		{cuda.PosixFD, "m2", clique(1, 7), false},
		{cuda.IPC, "m1", nvml.Fabric{}, true},
		{cuda.IPC, "m2", clique(1, 7), false},
	} {
		e := export{kind: c.kind, machine: c.machine, fabric: c.fabric, allocation: 1, door: doorPrefix + strings.Repeat("0", 32)}
		if got := here.reaches(&e); got != c.want {
			t.Errorf("%v on %s, %+v: %t", c.kind, c.machine, c.fabric, got)
		}
		if c.kind == cuda.IPC {
			e.id = allocationID{1, 15: 2}
		}
		back, err := parseExport(e.attributes(), 1)
		if !e.fabric.Reaches(e.fabric) {
			e.fabric = nvml.Fabric{}
		}
		if c.kind != cuda.PosixFD {
			e.door = ""
		}
		if err != nil || back != e {
			t.Errorf("%+v came back as %+v, %v", e, back, err)
		}
	}
}

// TestHostileAttributes: what a peer publishes is checked.
func TestHostileAttributes(t *testing.T) {
	good := (&export{kind: cuda.PosixFD, machine: "m", offset: 10, allocation: 100, door: doorPrefix + strings.Repeat("a", 32)}).attributes()
	if _, err := parseExport(good, 90); err != nil {
		t.Fatal(err)
	}
	ipc := (&export{kind: cuda.IPC, allocation: 100, id: allocationID{1}}).attributes()
	for id, good := range map[string]bool{ipc[attrID]: true, "": true, "00": false, ipc[attrID] + "00": false, "x" + ipc[attrID][1:]: false} {
		ipc[attrID] = id
		if _, err := parseExport(ipc, 90); (err == nil) != good {
			t.Errorf("the id %q: %v", id, err)
		}
	}
	for what, change := range map[string]func(sdk.Attributes){
		"no kind":              func(a sdk.Attributes) { delete(a, attrKind) },
		"another kind":         func(a sdk.Attributes) { a[attrKind] = "magic" },
		"another socket":       func(a sdk.Attributes) { a[attrDoor] = "/run/docker.sock" },
		"a longer socket":      func(a sdk.Attributes) { a[attrDoor] += "00" },
		"a short ticket":       func(a sdk.Attributes) { a[attrTicket] = "00" },
		"beyond its end":       func(a sdk.Attributes) { a[attrOffset] = "11" },
		"a negative offset":    func(a sdk.Attributes) { a[attrOffset] = "-1" },
		"an offset that wraps": func(a sdk.Attributes) { a[attrOffset] = "18446744073709551615" },
		"a small allocation":   func(a sdk.Attributes) { a[attrAllocation] = "89" },
		"a fabric of nothing":  func(a sdk.Attributes) { a[attrFabric] = "x/1" },
	} {
		a := sdk.Attributes{}
		for k, v := range good {
			a[k] = v
		}
		change(a)
		if e, err := parseExport(a, 90); !errors.Is(err, sdk.InvalidArgument) {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
	}
}
