//go:build linux

package simcuda

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/hawser-transport/hawser/internal/cuda"
)

// Driver is the driver of one process. Its lock covers everything made from it.
type Driver struct {
	options Options
	machine machine
	process string // its name
	alive   *os.File
	started sync.Once
	running sync.WaitGroup // streams
	dead    chan struct{}  // closed by Close

	mu       sync.Mutex
	gpus     []*gpu
	memories map[string]*memory // by name, what this process holds
	handles  map[cuda.Handle]*reference
	spans    []*span // by address
	hosts    []*mapping
	streams  map[cuda.Stream]*stream
	events   map[cuda.Event]*event
	seen     map[int]string // descriptors that callers got or gave: what they were of
	injected []Injection
	calls    int
	faults   []string
	isClosed bool
}

// New starts a process of a machine. Close ends it.
func New(o Options) (*Driver, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	d := &Driver{
		options: o, machine: machine(o.Dir), process: rand.Text(), dead: make(chan struct{}),
		memories: map[string]*memory{}, handles: map[cuda.Handle]*reference{},
		streams: map[cuda.Stream]*stream{}, events: map[cuda.Event]*event{}, seen: map[int]string{},
		injected: slices.Clone(o.Inject),
	}
	for i, c := range o.Devices {
		d.gpus = append(d.gpus, &gpu{Device: c, ordinal: i})
	}
	if err := d.machine.make(); err != nil {
		return nil, err
	}
	if d.alive, err = d.machine.enter(d.process); err != nil {
		return nil, err
	}
	return d, nil
}

// Close ends the process: what still exists is freed as by its death.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.isClosed {
		d.mu.Unlock()
		return nil
	}
	d.isClosed = true
	close(d.dead)
	for _, s := range d.streams {
		s.wake.Broadcast()
	}
	d.mu.Unlock()
	d.running.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.memories {
		m.close()
	}
	for _, e := range d.events {
		e.release()
	}
	for _, g := range d.gpus {
		g.leave()
	}
	os.Remove(d.machine.path("process", d.process))
	return d.alive.Close()
}

// Devices implements [cuda.Driver].
func (d *Driver) Devices() ([]cuda.Info, error) {
	d.started.Do(func() { d.pass(d.options.Start) })
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin("cuInit"); err != nil {
		return nil, err
	}
	infos := []cuda.Info{}
	for i, g := range d.gpus {
		infos = append(infos, g.info(i))
	}
	return infos, nil
}

// Open implements [cuda.Driver].
func (d *Driver) Open(ordinal int) (cuda.Device, error) {
	const call = "cuDevicePrimaryCtxRetain"
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.begin(call); err != nil {
		return nil, err
	}
	object := fmt.Sprintf("GPU %d", ordinal)
	if ordinal < 0 || ordinal >= len(d.gpus) {
		return nil, refuse(call, object, cuda.InvalidDevice)
	}
	g := d.gpus[ordinal]
	if err := g.enter(d.machine); err != nil {
		return nil, cuda.Taken(g.info(ordinal), refuse(call, object, cuda.DeviceUnavailable))
	}
	g.opens++
	dev := &device{d: d, gpu: g, thread: cuda.StartThread()}
	dev.context = &context{Driver: d, gpu: g}
	return dev, nil
}

// begin is the start of every call. The lock is held.
func (d *Driver) begin(call string) error {
	if d.options.Missing != "" {
		return &cuda.MissingError{What: d.options.Missing, Do: "ask the simulation for a machine that has it", Err: os.ErrNotExist}
	}
	d.calls++
	for i := range d.injected {
		in := &d.injected[i]
		if in.Call != "" && in.Call != call {
			continue
		}
		if in.After--; in.After >= 0 {
			continue
		}
		r := in.Result
		d.injected = slices.Delete(d.injected, i, i+1)
		return refuse(call, "", r)
	}
	if d.isClosed {
		d.fault("%s after the process ended", call)
		return refuse(call, "", cuda.Deinitialized)
	}
	return nil
}

// Inject makes a later call fail.
func (d *Driver) Inject(i Injection) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.injected = append(d.injected, i)
}

// Injected is how many injections have not come due.
func (d *Driver) Injected() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.injected)
}

// Calls is how many calls there were so far.
func (d *Driver) Calls() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls
}

func refuse(call, object string, r cuda.Result) error {
	return &cuda.CallError{Call: call, Object: object, Result: r}
}

// refused is refuse for what the operating system said.
func refused(call, object string, err error) error {
	if errors.Is(err, errFull) {
		return refuse(call, object, cuda.OutOfMemory)
	}
	return refuse(call, object+" ("+err.Error()+")", cuda.OperatingSystem)
}

// fault records a wrong order that the real driver would let pass.
func (d *Driver) fault(format string, args ...any) {
	const enough = 100 // a loop of faults must not fill the memory
	if len(d.faults) < enough {
		d.faults = append(d.faults, fmt.Sprintf(format, args...))
		d.machine.note(d.faults[len(d.faults)-1])
	}
}

// lowest is the lowest number that is free.
func lowest[N ~uint64, V any](taken map[N]V) N {
	n := N(1)
	for {
		if _, ok := taken[n]; !ok {
			return n
		}
		n++
	}
}
