package mapping

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

var (
	fabric = Kind{Name: "fabric", UniqueHandles: true}
	posix  = Kind{Name: "fd"}
	ipc    = Kind{Name: "ipc", ExclusiveBase: true}
)

var errInjected = errors.New("injected")

// driver is a strict fake: it keeps accounts of everything that it hands out,
// and takes down whoever gives things back twice or in the wrong order, or
// touches what is not mapped.
type driver struct {
	// before is called before each call; an error is the call's.
	before func(call string, number int) error

	mu       sync.Mutex
	calls    int
	fired    int // errors from before
	imports  int
	maps     int
	open     map[string]int // what is held, by kind
	held     map[string]int // resources by name: the import they are of
	mapped   map[int]byte   // imports that can be read: the content
	of       map[int]place
	ipcOpen  map[place]bool
	mistakes []string
}

func newDriver() *driver {
	return &driver{
		open: map[string]int{}, held: map[string]int{}, mapped: map[int]byte{}, of: map[int]place{},
		ipcOpen: map[place]bool{},
	}
}

func (d *driver) mistake(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	d.mistakes = append(d.mistakes, err.Error())
	return err
}

// enter is the begin of a call; its lock is held on success.
func (d *driver) enter(call string) error {
	d.mu.Lock()
	d.calls++
	n, before := d.calls, d.before
	if before == nil {
		return nil
	}
	d.mu.Unlock()
	err := before(call, n)
	d.mu.Lock()
	if err != nil {
		d.fired++
		d.mu.Unlock()
		return fmt.Errorf("%s: %w", call, err)
	}
	return nil
}

func (d *driver) acquire(what string, id int) error {
	if err := d.enter("get " + what); err != nil {
		return err
	}
	defer d.mu.Unlock()
	d.open[what]++
	d.held[fmt.Sprint(what, id)] = id
	return nil
}

// release gives something back; after is what must be gone before.
func (d *driver) release(what string, id int, after ...string) error {
	if err := d.enter("release " + what); err != nil {
		return err
	}
	defer d.mu.Unlock()
	name := fmt.Sprint(what, id)
	if _, ok := d.held[name]; !ok {
		return d.mistake("%s is released twice", name)
	}
	for _, a := range after {
		if _, ok := d.held[fmt.Sprint(a, id)]; ok {
			return d.mistake("%s is released before %s%d", name, a, id)
		}
	}
	delete(d.held, name)
	d.open[what]--
	switch what {
	case "map", "ipc":
		delete(d.mapped, id)
		if what == "ipc" {
			delete(d.ipcOpen, d.of[id])
		}
		delete(d.of, id)
	}
	return nil
}

// view is what a lease gives.
type view struct {
	d  *driver
	id int
}

// read is a copy out of the mapping.
func (v view) read() byte {
	v.d.mu.Lock()
	defer v.d.mu.Unlock()
	b, ok := v.d.mapped[v.id]
	if !ok {
		_ = v.d.mistake("import %d is read after it was unmapped", v.id)
	}
	return b
}

// imports what a source names: fd -> handle -> range -> map, or ipc.
func (d *driver) importer(_ context.Context, s Source, c *Cleanup) (view, error) {
	d.mu.Lock()
	d.imports++
	id := d.imports
	d.mu.Unlock()
	content := s.Attributes["memory"][0]
	v := view{d, id}
	get := func(stage Stage, what string, after ...string) error {
		if err := d.acquire(what, id); err != nil {
			return err
		}
		c.Add(stage, what, func() error { return d.release(what, id, after...) })
		return nil
	}
	done := func(what string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if what == "ipc" {
			if d.ipcOpen[s.place()] {
				_ = d.mistake("a second ipc mapping of %v", s.Key)
			}
			d.ipcOpen[s.place()] = true
		}
		d.mapped[id], d.of[id] = content, s.place()
		d.maps++
	}
	if s.Kind == ipc {
		if err := get(CloseMapping, "ipc"); err != nil {
			return view{}, err
		}
		done("ipc")
		return v, nil
	}
	if s.Kind == posix {
		if err := get(CloseDescriptor, "fd", "map", "range", "handle"); err != nil {
			return view{}, err
		}
	}
	// The range first: not the reverse of the order of the cleanup.
	if err := get(FreeRange, "range", "map"); err != nil {
		return view{}, err
	}
	early := []string{"map", "range"}
	if s.Kind == fabric {
		early = nil
	}
	if err := d.acquire("handle", id); err != nil {
		return view{}, err
	}
	handle := c.Add(ReleaseHandle, "handle", func() error { return d.release("handle", id, early...) })
	if err := get(Unmap, "map"); err != nil {
		return view{}, err
	}
	done("map")
	if s.Kind == fabric {
		_ = handle.Now() // what is refused has its turn later
	}
	return v, nil
}

// check wants no mistakes, and with nothing nothing held.
func (d *driver) check(t interface{ Fatalf(string, ...any) }, nothing bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.mistakes) > 0 {
		t.Fatalf("%d mistakes: %s", len(d.mistakes), strings.Join(d.mistakes[:min(3, len(d.mistakes))], "; "))
	}
	if nothing && len(d.held)+len(d.mapped)+len(d.ipcOpen) > 0 {
		t.Fatalf("still held: %v, %d mapped", slices.Sorted(maps.Keys(d.held)), len(d.mapped))
	}
}

// events counts what a cache tells.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) on(ev Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) count(w What, c Cause) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.What == w && (c == "" || ev.Cause == c) {
			n++
		}
	}
	return n
}

// provider publishes ranges of 1000 bytes, of which each has a content of its own.
type provider struct {
	id      sdk.Incarnation
	version uint64
	content byte
	caps    uint64
}

func newProvider(n byte) *provider {
	return &provider{id: sdk.Incarnation{n, 15: 1}, content: 100 * n}
}

// publish allocates memory at base and returns what the descriptor says of it.
func (p *provider) publish(base uint64, k Kind, capability bool) Source {
	p.version++
	p.content++
	p.caps++
	s := Source{
		Key: Key{Provider: p.id, Base: base}, Length: 1000, Kind: k, Version: p.version,
		Handle: []byte{7}, Attributes: sdk.Attributes{"memory": string([]byte{p.content})},
	}
	if k.UniqueHandles {
		s.Handle = []byte{p.content}
	}
	if capability {
		s.Capability = sdk.Capability{p.id[0]}
		binary.LittleEndian.PutUint64(s.Capability[8:], p.caps)
	}
	return s
}

// rig is a cache over a driver, closed and checked at the end.
type rig struct {
	*Cache[view]
	d *driver
	p *provider
	e *events
}

func newRig(t testing.TB, o Options) *rig {
	r := &rig{d: newDriver(), e: &events{}}
	r.p = newProvider(1)
	o.On = r.e.on
	r.Cache = New(r.d.importer, o)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Error(err)
		}
		r.d.check(t, true)
	})
	return r
}

// within1h is for what must not wait for ever: in fake time an hour is nothing.
func within1h(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	t.Cleanup(cancel)
	return ctx
}

func (r *rig) announce(t testing.TB, s Source) {
	t.Helper()
	if err := r.Announce(s); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) acquire(t testing.TB, s Source) Lease[view] {
	t.Helper()
	l, err := r.Acquire(within1h(t), s.Key, 0, s.Length)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func wantCode(t testing.TB, err error, c sdk.Code, part string) {
	t.Helper()
	if !errors.Is(err, c) || sdk.CodeOf(err) != c || !strings.Contains(err.Error(), part) {
		t.Fatalf("%v (%v), want %v with %q", err, sdk.CodeOf(err), c, part)
	}
}
