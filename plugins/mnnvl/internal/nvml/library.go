//go:build linux && cgo

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// New returns the reader of this machine's GPUs. The library is opened by each
// call of GPUs, and closed again.
func New() Reader { return library{nvml.New()} }

type library struct{ nvml.Interface }

// GPUs implements [Reader].
func (l library) GPUs() (gpus []GPU, err error) {
	if err := check(l.Init(), "nvmlInit"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, check(l.Shutdown(), "nvmlShutdown")) }()
	n, ret := l.DeviceGetCount()
	if err := check(ret, "nvmlDeviceGetCount"); err != nil {
		return nil, err
	}
	devices := make([]nvml.Device, n)
	gpus = make([]GPU, n)
	for i := range n {
		if devices[i], ret = l.DeviceGetHandleByIndex(i); ret != nvml.SUCCESS {
			return nil, check(ret, "nvmlDeviceGetHandleByIndex")
		}
		text, ret := devices[i].GetUUID()
		if err := check(ret, "nvmlDeviceGetUUID"); err != nil {
			return nil, err
		}
		if gpus[i].UUID, err = parseUUID(text); err != nil {
			return nil, err
		}
		gpus[i].Fabric, err = l.fabric(devices[i])
		if err != nil {
			return nil, err
		}
		gpus[i].Links = links(devices[i])
		if memory, ret := devices[i].GetMemoryInfo(); ret == nvml.SUCCESS {
			gpus[i].Used = memory.Used
		}
	}
	for i, d := range devices {
		for j, o := range devices {
			// What does not answer is not connected.
			if status, ret := d.GetP2PStatus(o, nvml.P2P_CAPS_INDEX_NVLINK); i != j && ret == nvml.SUCCESS && status == nvml.P2P_STATUS_OK {
				gpus[i].Peers = append(gpus[i].Peers, gpus[j].UUID)
			}
		}
	}
	return gpus, nil
}

// fabric asks in the oldest form, which says all that is needed here and which
// every driver with a fabric has. A driver without the function would end the
// process when it is called.
func (l library) fabric(d nvml.Device) (Fabric, error) {
	const call = "nvmlDeviceGetGpuFabricInfo"
	if l.Extensions().LookupSymbol(call) != nil {
		return Fabric{}, nil
	}
	i, ret := d.GetGpuFabricInfo() //nolint:staticcheck // see above
	if ret == nvml.ERROR_NOT_SUPPORTED {
		return Fabric{}, nil
	}
	f := Fabric{State: FabricState(i.State), Cluster: i.ClusterUuid, Clique: i.CliqueId}
	if f.State == FabricCompleted && nvml.Return(i.Status) != nvml.SUCCESS {
		f.State = FabricFailed
	}
	return f, check(ret, call)
}

// links counts a device's NVLinks that are up; the numbers of those that it
// does not have answer an error.
func links(d nvml.Device) (n int) {
	for i := range nvml.NVLINK_MAX_LINKS {
		if state, ret := d.GetNvLinkState(i); ret == nvml.SUCCESS && state == nvml.FEATURE_ENABLED {
			n++
		}
	}
	return n
}

func check(ret nvml.Return, call string) error {
	switch ret {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return &cuda.MissingError{What: "libnvidia-ml.so.1", Do: "install the NVIDIA driver; in a container, give it the driver's utilities (NVIDIA_DRIVER_CAPABILITIES=utility,compute)", Err: ret}
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return &cuda.MissingError{What: "NVIDIA's driver in the kernel", Do: "load it (modprobe nvidia), on the host if this is a container", Err: ret}
	}
	return fmt.Errorf("%s: %w", call, ret)
}
