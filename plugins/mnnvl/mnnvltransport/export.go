//go:build linux

package mnnvltransport

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/plugins/mnnvl/internal/nvml"
	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mapping"
)

// export is how device memory can be reached: what a region's attributes say.
type export struct {
	kind cuda.Kind
	// handle is a fabric or IPC handle's, id an IPC handle's allocation's.
	handle [sdk.HandleBytes]byte
	id     allocationID
	// ticket and door are for a descriptor: what to ask for, and where.
	ticket ticket
	door   string
	// The region begins at offset of the allocation, both in bytes.
	offset, allocation uint64
	// Where it is: the machine and the GPU's place in a fabric.
	machine string
	fabric  nvml.Fabric
}

// everyKind lists the kinds of handles, the one that reaches furthest first.
func everyKind() []cuda.Kind { return []cuda.Kind{cuda.Fabric, cuda.PosixFD, cuda.IPC} }

// handleKind is package mapping's. A fabric handle is another for each
// allocation. A descriptor and an IPC handle repeat, and an IPC mapping has to
// be closed before its base is opened again.
func handleKind(k cuda.Kind) mapping.Kind {
	switch k {
	case cuda.Fabric:
		return mapping.Kind{Name: k.String(), UniqueHandles: true}
	case cuda.IPC:
		return mapping.Kind{Name: k.String(), ExclusiveBase: true}
	}
	return mapping.Kind{Name: k.String()}
}

// kindOf converts the contract's kind.
func kindOf(k sdk.HandleKind) cuda.Kind {
	switch k {
	case sdk.FabricHandle:
		return cuda.Fabric
	case sdk.IPCHandle:
		return cuda.IPC
	}
	return cuda.PosixFD
}

// The attributes of a region.
const (
	attrKind       = "kind"
	attrHandle     = "handle"
	attrTicket     = "ticket"
	attrDoor       = "door"
	attrOffset     = "offset"
	attrAllocation = "allocation"
	attrID         = "allocation_id"
	attrMachine    = "machine"
	attrFabric     = "fabric"
	// attrWritable is not published: it is what the importer has to know.
	attrWritable = "writable"
)

func (e *export) attributes() sdk.Attributes {
	a := sdk.Attributes{
		attrKind: e.kind.String(), attrMachine: e.machine,
		attrOffset: strconv.FormatUint(e.offset, 10), attrAllocation: strconv.FormatUint(e.allocation, 10),
	}
	if e.kind == cuda.PosixFD {
		a[attrTicket], a[attrDoor] = hex.EncodeToString(e.ticket[:]), e.door
	} else {
		a[attrHandle] = hex.EncodeToString(e.handle[:])
	}
	if e.id != (allocationID{}) {
		a[attrID] = hex.EncodeToString(e.id[:])
	}
	if f := formatFabric(e.fabric); f != "" {
		a[attrFabric] = f
	}
	return a
}

// parseExport reads what a peer published of a region of that length.
func parseExport(a sdk.Attributes, length uint64) (e export, err error) {
	bad := func(what string) (export, error) {
		return export{}, sdk.Errorf(sdk.InvalidArgument, "mnnvl: a region whose %s is %q", what, a[what])
	}
	for _, k := range everyKind() {
		if k.String() == a[attrKind] {
			e.kind = k
		}
	}
	if e.kind == 0 {
		return bad(attrKind)
	}
	e.machine, e.door = a[attrMachine], a[attrDoor]
	if e.offset, err = strconv.ParseUint(a[attrOffset], 10, 64); err != nil {
		return bad(attrOffset)
	}
	if e.allocation, err = strconv.ParseUint(a[attrAllocation], 10, 64); err != nil || length > e.allocation || e.offset > e.allocation-length {
		return bad(attrAllocation)
	}
	if a[attrFabric] != "" {
		if e.fabric, err = parseFabric(a[attrFabric]); err != nil {
			return bad(attrFabric)
		}
	}
	if e.kind == cuda.PosixFD {
		if !unhex(e.ticket[:], a[attrTicket]) {
			return bad(attrTicket)
		}
		if !isDoor(e.door) {
			return bad(attrDoor)
		}
	} else if !unhex(e.handle[:], a[attrHandle]) {
		return bad(attrHandle)
	}
	if id := a[attrID]; e.kind == cuda.IPC && id != "" && !unhex(e.id[:], id) {
		return bad(attrID)
	}
	return e, nil
}

func unhex(into []byte, text string) bool {
	b, err := hex.DecodeString(text)
	return err == nil && copy(into, b) == len(into) && len(b) == len(into)
}

// source is what a mapping of the memory is made of.
func (e *export) source(k mapping.Key, length uint64, writable bool, version uint64) mapping.Source {
	a := e.attributes()
	a[attrWritable] = strconv.FormatBool(writable)
	handle := e.handle[:]
	if e.kind == cuda.PosixFD {
		handle = e.ticket[:]
	}
	return mapping.Source{Key: k, Length: length, Kind: handleKind(e.kind), Handle: handle, Attributes: a, Version: version}
}

// place is where a device is.
type place struct {
	machine string
	fabric  nvml.Fabric
}

// reaches says whether a device of this place can map the memory.
func (p place) reaches(e *export) bool {
	if p.machine == e.machine {
		return true
	}
	return e.kind == cuda.Fabric && p.fabric.Reaches(e.fabric)
}

// formatFabric is empty for a GPU that reaches no other machine.
func formatFabric(f nvml.Fabric) string {
	if !f.Reaches(f) {
		return ""
	}
	return fmt.Sprintf("%x/%d", f.Cluster, f.Clique)
}

func parseFabric(s string) (nvml.Fabric, error) {
	cluster, clique, _ := strings.Cut(s, "/")
	f := nvml.Fabric{State: nvml.FabricCompleted}
	n, err := strconv.ParseUint(clique, 10, 32)
	f.Clique = uint32(n)
	if err == nil && !unhex(f.Cluster[:], cluster) {
		err = strconv.ErrSyntax
	}
	return f, err
}
