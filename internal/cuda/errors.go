package cuda

import (
	"errors"
	"fmt"
	"strings"
)

// ErrClosed is what a closed device answers.
var ErrClosed = errors.New("cuda: the device is closed")

// MissingError says what this machine or process lacks for CUDA, and what to do.
type MissingError struct {
	What string // "libcuda.so.1", "GPU 0"
	Do   string // "install the NVIDIA driver"
	Err  error
}

func (e *MissingError) Error() string {
	s := "missing " + e.What
	if e.Err != nil {
		s += " (" + e.Err.Error() + ")"
	}
	if e.Do != "" {
		s += ": " + e.Do
	}
	return s
}

func (e *MissingError) Unwrap() error { return e.Err }

// CallError is a call of the driver that failed. It matches its [Result].
type CallError struct {
	Call   string // "cuMemCreate"
	Object string // "2097152 bytes, fabric"
	Result Result
}

func (e *CallError) Error() string {
	s := e.Call
	if e.Object != "" {
		s += " of " + e.Object
	}
	s += ": " + e.Result.Error()
	if do := e.Result.do(); do != "" {
		s += ": " + do
	}
	return s
}

func (e *CallError) Unwrap() error { return e.Result }

// Result is a CUresult other than success.
type Result int

// The results that callers tell apart, with CUDA's numbers.
const (
	InvalidValue         Result = 1
	OutOfMemory          Result = 2
	NotInitialized       Result = 3
	Deinitialized        Result = 4
	DeviceUnavailable    Result = 46
	NoDevice             Result = 100
	InvalidDevice        Result = 101
	InvalidContext       Result = 201
	MapFailed            Result = 205
	AlreadyMapped        Result = 208
	NotMapped            Result = 211
	PeerUnsupported      Result = 217
	InvalidPTX           Result = 218
	OperatingSystem      Result = 304
	InvalidHandle        Result = 400
	NotFound             Result = 500
	NotReady             Result = 600
	IllegalAddress       Result = 700
	AlreadyRegistered    Result = 712
	NotRegistered        Result = 713
	LaunchFailed         Result = 719
	NotPermitted         Result = 800
	NotSupported         Result = 801
	SystemNotReady       Result = 802
	SystemDriverMismatch Result = 803
	Unknown              Result = 999
)

// lost is what to do about a result that costs the context.
const lost = "the context is lost: the process has to end"

// results names them, and the others that a GPU's fault may answer, and says
// what to do where somebody can do something.
var results = map[Result]struct{ name, do string }{
	InvalidValue:         {"INVALID_VALUE", ""},
	OutOfMemory:          {"OUT_OF_MEMORY", "free memory on the GPU, or register less"},
	NotInitialized:       {"NOT_INITIALIZED", ""},
	Deinitialized:        {"DEINITIALIZED", lost},
	DeviceUnavailable:    {"DEVICE_UNAVAILABLE", "another process has the GPU for itself: set its compute mode to default (nvidia-smi -c DEFAULT)"},
	NoDevice:             {"NO_DEVICE", "give this process a GPU (CUDA_VISIBLE_DEVICES; --gpus for a container)"},
	InvalidDevice:        {"INVALID_DEVICE", ""},
	InvalidContext:       {"INVALID_CONTEXT", ""},
	MapFailed:            {"MAP_FAILED", ""},
	AlreadyMapped:        {"ALREADY_MAPPED", ""},
	NotMapped:            {"NOT_MAPPED", ""},
	209:                  {"NO_BINARY_FOR_GPU", ""},
	214:                  {"ECC_UNCORRECTABLE", lost + "; the GPU's memory has failed"},
	PeerUnsupported:      {"PEER_ACCESS_UNSUPPORTED", "the two GPUs do not reach each other: see nvidia-smi topo -p2p n"},
	InvalidPTX:           {"INVALID_PTX", ""},
	220:                  {"NVLINK_UNCORRECTABLE", lost + "; an NVLink has failed (nvidia-smi nvlink -e)"},
	222:                  {"UNSUPPORTED_PTX_VERSION", ""},
	OperatingSystem:      {"OPERATING_SYSTEM", "the limits of open files or locked memory may be too low (ulimit -n, -l)"},
	InvalidHandle:        {"INVALID_HANDLE", ""},
	401:                  {"ILLEGAL_STATE", ""},
	NotFound:             {"NOT_FOUND", ""},
	NotReady:             {"NOT_READY", ""},
	IllegalAddress:       {"ILLEGAL_ADDRESS", lost},
	702:                  {"LAUNCH_TIMEOUT", lost},
	704:                  {"PEER_ACCESS_ALREADY_ENABLED", ""},
	AlreadyRegistered:    {"HOST_MEMORY_ALREADY_REGISTERED", ""},
	NotRegistered:        {"HOST_MEMORY_NOT_REGISTERED", ""},
	710:                  {"ASSERT", lost},
	714:                  {"HARDWARE_STACK_ERROR", lost},
	715:                  {"ILLEGAL_INSTRUCTION", lost},
	716:                  {"MISALIGNED_ADDRESS", lost},
	717:                  {"INVALID_ADDRESS_SPACE", lost},
	718:                  {"INVALID_PC", lost},
	LaunchFailed:         {"LAUNCH_FAILED", lost},
	NotPermitted:         {"NOT_PERMITTED", "fabric handles need an IMEX channel that an administrator grants this process"},
	NotSupported:         {"NOT_SUPPORTED", ""},
	SystemNotReady:       {"SYSTEM_NOT_READY", "start the machine's fabric manager"},
	SystemDriverMismatch: {"SYSTEM_DRIVER_MISMATCH", "the library and the kernel's driver differ: reboot, or install the same version"},
	Unknown:              {"UNKNOWN", ""},
}

// Error is the driver's name: CUDA_ERROR_NOT_PERMITTED.
func (r Result) Error() string {
	if k, ok := results[r]; ok {
		return "CUDA_ERROR_" + k.name
	}
	return fmt.Sprintf("CUDA error %d", int(r))
}

func (r Result) do() string { return results[r].do }

// IsLost reports whether an error has cost the context: every later call
// fails, and only the end of the process gives the GPU's resources back.
func IsLost(err error) bool {
	for r, k := range results {
		if strings.HasPrefix(k.do, lost) && errors.Is(err, r) {
			return true
		}
	}
	return false
}

// Taken is the error of opening a device that another process has for itself.
func Taken(i Info, err error) error {
	return &MissingError{
		What: fmt.Sprintf("GPU %d (%s): its compute mode is %s, and another process has it", i.Ordinal, i.Name, i.Mode),
		Do:   "let several processes use it: nvidia-smi -c DEFAULT", Err: err,
	}
}
