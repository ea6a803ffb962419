package nvml

import (
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// Reader reads the state of this machine's GPUs, as it is now.
type Reader interface {
	// GPUs fails with a [*cuda.MissingError] where the library or the
	// kernel's driver is missing. It may take a second.
	GPUs() ([]GPU, error)
}

// GPU is one as the management library sees it: all of the machine's, whatever
// CUDA_VISIBLE_DEVICES says.
type GPU struct {
	UUID   cuda.UUID
	Fabric Fabric
	// Links is how many NVLinks are up.
	Links int
	// Peers are the machine's other GPUs that this one reaches over NVLink.
	Peers []cuda.UUID
	// Used is how much of its memory is in use, in bytes; 0 if not known.
	Used uint64
}

// Fabric is a GPU's place among machines that NVLink connects.
type Fabric struct {
	State FabricState
	// Cluster is all zero for a machine by itself.
	Cluster [16]byte
	// Clique numbers the GPUs of a cluster that reach each other.
	Clique uint32
}

// FabricState says how far a GPU's registration with its fabric is, with NVML's
// numbers.
type FabricState uint8

const (
	// FabricUnsupported: the GPU has none.
	FabricUnsupported FabricState = 0
	// FabricNotStarted: not yet. The fabric manager may not run.
	FabricNotStarted FabricState = 1
	// FabricInProgress: not yet.
	FabricInProgress FabricState = 2
	// FabricCompleted: registered.
	FabricCompleted FabricState = 3
	// FabricFailed: completed, with an error. Ours, not NVML's.
	FabricFailed FabricState = 255
)

func (s FabricState) String() string {
	switch s {
	case FabricUnsupported:
		return "not supported"
	case FabricNotStarted:
		return "not started"
	case FabricInProgress:
		return "in progress"
	case FabricCompleted:
		return "completed"
	case FabricFailed:
		return "failed"
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Reaches reports whether memory of one GPU can be mapped on the other, on
// whatever machine of the cluster that is.
func (f Fabric) Reaches(o Fabric) bool {
	return f.State == FabricCompleted && o.State == FabricCompleted &&
		f.Cluster != [16]byte{} && f.Cluster == o.Cluster && f.Clique == o.Clique
}

// Fake is a [Reader] that knows what it is to answer.
type Fake []GPU

// GPUs implements [Reader].
func (f Fake) GPUs() ([]GPU, error) { return f, nil }

// parseUUID reads "GPU-" and a UUID.
func parseUUID(s string) (u cuda.UUID, err error) {
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimPrefix(s, "GPU-"), "-", ""))
	if err != nil || len(b) != len(u) {
		return u, fmt.Errorf("nvml: %q is not the UUID of a GPU", s)
	}
	return cuda.UUID(b), nil
}
