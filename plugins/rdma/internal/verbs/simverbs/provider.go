package simverbs

import (
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Provider is one process on a virtual host. Its lock covers everything made
// from it, so that no test meets an order that only a lock-free device has.
type Provider struct {
	options  Options
	process  string // its name in the directory
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	nics     map[string]*nic
	fabric   *fabric
	links    map[string]*link
	conns    map[net.Conn]bool
	injected []*Injection
	faults   []string
	isClosed bool
}

// nic is what the contexts of one device share.
type nic struct {
	p       *Provider
	name    string
	config  Device
	qps     map[uint32]*qp
	opened  map[*device]bool
	starved bool // answers as if no receive were posted
	held    bool // keeps completions back
}

// Injection is a call that is to fail.
type Injection struct {
	// Call is the verbs name: "ibv_reg_mr". Moves of a queue pair are
	// "ibv_modify_qp" or one of "ibv_modify_qp(INIT)", (RTR), (RTS), (ERR), (RESET).
	// "ibv_post_send(WR)" and "ibv_post_srq_recv(WR)" count work requests, not
	// calls, and those before the failing one are posted.
	Call string
	// Device limits it to one device; empty is any.
	Device string `json:",omitempty"`
	Errno  verbs.Errno
	// After is how many calls go well before.
	After int `json:",omitempty"`
}

// New starts a process of a host. Close ends it.
func New(o Options) (*Provider, error) {
	o, err := o.complete()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "p"), 0o700); err != nil {
		return nil, err
	}
	p := &Provider{
		options: o,
		process: fmt.Sprintf("%s.%d.%s", o.Host, os.Getpid(), rand.Text()[:6]),
		nics:    map[string]*nic{},
		links:   map[string]*link{},
		conns:   map[net.Conn]bool{},
	}
	for _, d := range o.Devices {
		p.nics[d.Name] = &nic{p: p, name: d.Name, config: d, qps: map[uint32]*qp{}, opened: map[*device]bool{}}
	}
	socket := socketOf(o.Dir, p.process)
	if len(socket) > 103 {
		return nil, fmt.Errorf("simverbs: %s is too long for a socket's name: use a shorter directory", socket)
	}
	// Whoever changes the fabric tells every process that listens by then, so
	// listen first and read afterwards.
	if p.listener, err = net.Listen("unix", socket); err != nil {
		return nil, err
	}
	err = changeFabric(o.Dir, func(f *fabric) error {
		p.fabric = f
		return f.register(o)
	})
	if err != nil {
		p.listener.Close()
		return nil, err
	}
	p.running.Go(p.serve)
	return p, nil
}

// Close ends the process: what is still open is a fault, and is destroyed.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.isClosed {
		p.mu.Unlock()
		return nil
	}
	p.isClosed = true
	for _, n := range p.nics {
		if len(n.opened) > 0 {
			p.fault("the provider was closed with %s open", n.name)
		}
		for _, q := range n.qps {
			q.destroy()
		}
		for d := range n.opened {
			d.wakeAll()
		}
	}
	p.listener.Close()
	for _, l := range p.links {
		l.close()
	}
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.running.Wait()
	return nil
}

// Devices implements [verbs.Provider].
func (p *Provider) Devices() ([]verbs.Info, error) {
	if err := p.missing(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.inject("ibv_get_device_list", ""); err != nil {
		return nil, err
	}
	infos := []verbs.Info{}
	for _, d := range p.options.Devices {
		info := verbs.Info{Name: d.Name, Driver: d.Driver, NUMA: d.NUMA}
		for _, port := range d.Ports {
			info.Netdevs = append(info.Netdevs, port.Netdev)
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// Open implements [verbs.Provider].
func (p *Provider) Open(name string) (verbs.Device, error) {
	if err := p.missing(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.inject("ibv_open_device", name); err != nil {
		return nil, err
	}
	n := p.nics[name]
	if n == nil {
		return nil, refuse("ibv_open_device", name, syscall.ENODEV)
	}
	if n.config.OpenError != 0 {
		return nil, refuse("ibv_open_device", name, n.config.OpenError)
	}
	return newDevice(n), nil
}

func (p *Provider) missing() error {
	if p.options.Missing == "" {
		return nil
	}
	err := &verbs.MissingError{What: p.options.Missing, Do: "ask the simulation for a host that has it", Err: os.ErrNotExist}
	for _, d := range p.options.Devices {
		err.Present = d.Name
		break
	}
	return err
}

// Inject makes a later call fail.
func (p *Provider) Inject(i Injection) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.injected = append(p.injected, &i)
}

// inject returns the error that was ordered for this call, under any of its names.
func (p *Provider) inject(call, object string, more ...string) error {
	for _, name := range append(more, call) {
		for i, in := range p.injected {
			if in.Call != name || in.Device != "" && in.Device != object {
				continue
			}
			if in.After--; in.After >= 0 {
				break
			}
			p.injected = append(p.injected[:i:i], p.injected[i+1:]...)
			return refuse(call, object, in.Errno)
		}
	}
	return nil
}

func refuse(call, object string, errno verbs.Errno) error {
	return &verbs.CallError{Call: call, Object: object, Err: errno}
}

// fault records a wrong order that verbs would let pass.
func (p *Provider) fault(format string, args ...any) {
	const enough = 100 // a loop of faults must not fill the memory
	if len(p.faults) < enough {
		p.faults = append(p.faults, fmt.Sprintf(format, args...))
	}
}

// refresh reads the fabric again and tells the devices what changed.
func (p *Provider) refresh() error {
	next, err := readFabric(p.options.Dir)
	if err != nil {
		return err
	}
	before := p.fabric
	p.fabric = next
	for _, n := range p.nics {
		for i := range n.config.Ports {
			name := n.port(i + 1)
			n.tellPort(i+1, before.Ports[name], next.Ports[name])
		}
	}
	return nil
}

// find returns the port that an address belongs to.
func (p *Provider) find(by func(*fabric) *fabricPort) *fabricPort {
	if at := by(p.fabric); at != nil {
		return at
	}
	// A host that started after us.
	if p.refresh() != nil {
		return nil
	}
	return by(p.fabric)
}

func now() int64 { return time.Now().UnixNano() }
