//go:build linux && cgo

package nvml

import (
	"errors"
	"reflect"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// machine is a library of GPUs that are connected in pairs, two links a GPU.
type machine struct {
	mock.Interface
	open      int
	hasFabric bool
}

func newMachine(fabrics ...nvml.GpuFabricInfo) *machine {
	m := &machine{hasFabric: true}
	m.InitFunc = func() nvml.Return { m.open++; return nvml.SUCCESS }
	m.ShutdownFunc = func() nvml.Return { m.open--; return nvml.SUCCESS }
	m.DeviceGetCountFunc = func() (int, nvml.Return) { return len(fabrics), nvml.SUCCESS }
	m.ExtensionsFunc = func() nvml.ExtendedInterface {
		return &mock.ExtendedInterface{LookupSymbolFunc: func(name string) error {
			if m.hasFabric {
				return nil
			}
			return errors.New(name)
		}}
	}
	devices := make([]*mock.Device, len(fabrics))
	for i, f := range fabrics {
		devices[i] = &mock.Device{
			GetUUIDFunc: func() (string, nvml.Return) {
				return "GPU-00000000-0000-0000-0000-00000000000" + string(rune('0'+i)), nvml.SUCCESS
			},
			GetGpuFabricInfoFunc: func() (nvml.GpuFabricInfo, nvml.Return) { return f, nvml.SUCCESS },
			GetNvLinkStateFunc: func(link int) (nvml.EnableState, nvml.Return) {
				switch {
				case link < 2:
					return nvml.FEATURE_ENABLED, nvml.SUCCESS
				case link < 4:
					return nvml.FEATURE_DISABLED, nvml.SUCCESS
				}
				return nvml.FEATURE_ENABLED, nvml.ERROR_INVALID_ARGUMENT
			},
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
				if i == 3 {
					return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED
				}
				return nvml.Memory{Used: uint64(i) << 20}, nvml.SUCCESS
			},
			GetP2PStatusFunc: func(o nvml.Device, _ nvml.GpuP2PCapsIndex) (nvml.GpuP2PStatus, nvml.Return) {
				if o == nvml.Device(devices[i^1]) {
					return nvml.P2P_STATUS_OK, nvml.SUCCESS
				}
				return nvml.P2P_STATUS_NOT_SUPPORTED, nvml.SUCCESS
			},
		}
	}
	m.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) { return devices[i], nvml.SUCCESS }
	return m
}

func uuid(last byte) cuda.UUID { return cuda.UUID{15: last} }

func TestGPUs(t *testing.T) {
	cluster := [16]uint8{1, 2, 3}
	m := newMachine(
		nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: cluster, CliqueId: 7},
		nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(nvml.ERROR_UNKNOWN), ClusterUuid: cluster, CliqueId: 7},
		nvml.GpuFabricInfo{State: nvml.GPU_FABRIC_STATE_IN_PROGRESS},
		nvml.GpuFabricInfo{},
	)
	want := []GPU{
		{uuid(0), Fabric{FabricCompleted, cluster, 7}, 2, []cuda.UUID{uuid(1)}, 0},
		{uuid(1), Fabric{FabricFailed, cluster, 7}, 2, []cuda.UUID{uuid(0)}, 1 << 20},
		{uuid(2), Fabric{State: FabricInProgress}, 2, []cuda.UUID{uuid(3)}, 2 << 20},
		{uuid(3), Fabric{}, 2, []cuda.UUID{uuid(2)}, 0},
	}
	if got, err := (library{m}).GPUs(); err != nil || !reflect.DeepEqual(got, want) || m.open != 0 {
		t.Errorf("%+v, %v, and the library is open %d times", got, err, m.open)
	}
	m.hasFabric = false
	got, err := library{m}.GPUs()
	if err != nil || got[0].Fabric != (Fabric{}) {
		t.Errorf("a driver without a fabric: %+v, %v", got, err)
	}
}

// TestClosed: the library is closed whatever fails.
func TestClosed(t *testing.T) {
	for name, breaks := range map[string]func(*machine){
		"count": func(m *machine) {
			m.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
		},
		"handle": func(m *machine) {
			m.DeviceGetHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }
		},
	} {
		m := newMachine(nvml.GpuFabricInfo{})
		breaks(m)
		if gpus, err := (library{m}).GPUs(); !errors.Is(err, nvml.ERROR_GPU_IS_LOST) || gpus != nil || m.open != 0 {
			t.Errorf("%s fails: %v, %v, and the library is open %d times", name, gpus, err, m.open)
		}
	}
	m := newMachine()
	m.InitFunc = func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }
	var missing *cuda.MissingError
	if _, err := (library{m}).GPUs(); !errors.As(err, &missing) || m.open != 0 {
		t.Errorf("%v", err)
	}
}

// TestThisMachine reads the GPUs here, or says what is missing.
func TestThisMachine(t *testing.T) {
	gpus, err := New().GPUs()
	var missing *cuda.MissingError
	if errors.As(err, &missing) {
		if missing.Do == "" {
			t.Error(err)
		}
		t.Skipf("SKIPPED, needs a GPU: %v", err)
	}
	if err != nil || len(gpus) == 0 {
		t.Fatalf("%v, %v", gpus, err)
	}
	for _, g := range gpus {
		t.Logf("%s: fabric %s, cluster %x, clique %d; %d links, %d peers", g.UUID, g.Fabric.State, g.Fabric.Cluster, g.Fabric.Clique, g.Links, len(g.Peers))
	}
}

func TestReaches(t *testing.T) {
	a := Fabric{FabricCompleted, [16]byte{1}, 1}
	for _, e := range []struct {
		of   func(*Fabric)
		want bool
	}{
		{func(*Fabric) {}, true},
		{func(f *Fabric) { f.Clique = 2 }, false},
		{func(f *Fabric) { f.Cluster[0] = 2 }, false},
		{func(f *Fabric) { f.State = FabricFailed }, false},
		{func(f *Fabric) { f.State = FabricInProgress }, false},
	} {
		b := a
		e.of(&b)
		if a.Reaches(b) != e.want || b.Reaches(a) != e.want {
			t.Errorf("%+v and %+v: not %v", a, b, e.want)
		}
	}
	alone := Fabric{State: FabricCompleted}
	if alone.Reaches(alone) {
		t.Error("a machine without a cluster reaches another one")
	}
}

func TestParseUUID(t *testing.T) {
	u := cuda.UUID{1, 2, 3, 0xfe, 15: 9}
	if got, err := parseUUID(u.String()); got != u || err != nil {
		t.Errorf("%v, %v", got, err)
	}
	for _, s := range []string{"", "GPU-", "GPU-01", "GPU-zz", u.String() + "00"} {
		if _, err := parseUUID(s); err == nil {
			t.Errorf("%q is taken for a UUID", s)
		}
	}
}
