//go:build linux

package rdmalab

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
)

// Options are a lab's. The zero value has the documented defaults.
type Options struct {
	// Kernel is the folder that deps.sh printed, Agent the agent's binary.
	Kernel, Agent string
	// Out is shared with the hosts as /out. Empty: there is an empty folder,
	// which goes with the lab.
	Out string
	// Processors and MiB are each host's; 0 is 1 and 1536.
	Processors, MiB int
	// BootIn is how long the hosts may take; 0 is 3 minutes. Under KVM it is a
	// sixth of that: they are up in seconds, or it does not run them.
	BootIn time.Duration
	// Progress is told what happens, a line each; nil tells nobody.
	Progress io.Writer
}

func (o Options) complete() Options {
	if o.Processors == 0 {
		o.Processors = 1
	}
	if o.MiB == 0 {
		o.MiB = 1536
	}
	if o.BootIn == 0 {
		o.BootIn = 3 * time.Minute
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return o
}

// Lab is two hosts that run.
type Lab struct {
	// Hosts are the two, and HostsFile a file for `hawser demo --hosts`.
	Hosts     []agent.Host
	HostsFile string

	o        Options
	accel    string // QEMU's name and settings of what runs the hosts
	dir      string // sockets, initial file systems, consoles
	machines []*machine
}

// Start boots both hosts and returns when both agents answer: under KVM where
// that runs them, else emulated. A lab that did not start has left nothing, and
// the error has the end of the consoles.
func Start(ctx context.Context, o Options) (*Lab, error) {
	if !hasKVM() {
		return startOn(ctx, o, "tcg,thread=multi")
	}
	fast := o.complete()
	fast.BootIn /= 6
	l, err := startOn(ctx, fast, "kvm")
	if err == nil || ctx.Err() != nil {
		return l, err
	}
	fmt.Fprintf(fast.Progress, "lab: KVM does not run the hosts, they are emulated: %v\n", err)
	return startOn(ctx, o, "tcg,thread=multi")
}

// hasKVM reports whether there is a KVM that this process may use, on a
// processor that has what it needs: a machine that is itself virtual may have
// the device without that.
func hasKVM() bool {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return false
	}
	f.Close()
	b, _ := os.ReadFile("/proc/cpuinfo")
	return bytes.Contains(b, []byte(" vmx")) || bytes.Contains(b, []byte(" svm"))
}

func startOn(ctx context.Context, o Options, accel string) (*Lab, error) {
	l := &Lab{o: o.complete(), accel: accel}
	err := l.start(ctx)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context) (err error) {
	if l.dir, err = os.MkdirTemp("", "rdmalab-"); err != nil { // only its owner's
		return err
	}
	kernel, mods, err := findKernel(l.o.Kernel)
	if err != nil {
		return err
	}
	if l.o.Out == "" {
		if l.o.Out, err = filepath.Join(l.dir, "out"), os.Mkdir(filepath.Join(l.dir, "out"), 0o700); err != nil {
			return err
		}
	}
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, l.o.BootIn, fmt.Errorf("the hosts did not boot within %s", l.o.BootIn))
	defer cancel()
	for n := 1; n <= 2; n++ {
		if err := l.boot(n, kernel, mods); err != nil {
			return err
		}
	}
	fmt.Fprintf(l.o.Progress, "lab: two hosts boot (%s)\n", filepath.Base(kernel))
	for i, m := range l.machines {
		if err := m.await(ctx, l.Hosts[i]); err != nil {
			return fmt.Errorf("host %d: %w\n%s", i+1, err, m.console())
		}
		fmt.Fprintf(l.o.Progress, "lab: host %d is up after %.0f s\n", i+1, time.Since(began).Seconds())
	}
	b, err := json.Marshal(l.Hosts)
	if err != nil {
		return err
	}
	l.HostsFile = filepath.Join(l.dir, "hosts.json")
	return os.WriteFile(l.HostsFile, b, 0o600)
}

// findKernel returns the kernel's file and its modules.
func findKernel(dir string) (kernel string, mods []string, err error) {
	found, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("no kernel in %s: run deps.sh", dir)
	}
	if err != nil {
		return "", nil, err
	}
	dir, err = filepath.EvalSymlinks(dir)
	if err == nil {
		mods, err = modules(filepath.Join(dir, "lib/modules"))
	}
	return found[0], mods, err
}

// boot starts host n.
func (l *Lab) boot(n int, kernel string, mods []string) error {
	secret := rand.Text()
	initrd := filepath.Join(l.dir, fmt.Sprintf("initrd%d", n))
	f, err := os.OpenFile(initrd, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(writeInitrd(f, l.o.Agent, secret, mods), f.Close()); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	l.Hosts = append(l.Hosts, agent.Host{
		Agent: port, Secret: secret, Address: fmt.Sprintf("10.77.2.%d", n), Rails: []string{"eth0", "eth1"},
	})
	m, err := startMachine(l.machineArgs(n, kernel, initrd, port), filepath.Join(l.dir, fmt.Sprintf("console%d", n)))
	if err == nil {
		l.machines = append(l.machines, m)
	}
	return err
}

// freePort is an address of 127.0.0.1 that nobody listens at. Should somebody
// take it before QEMU does, QEMU says so and the lab does not start.
func freePort() (string, error) {
	s, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return s.Addr().String(), s.Close()
}

// machineArgs are QEMU's arguments.
func (l *Lab) machineArgs(n int, kernel, initrd, port string) []string {
	args := []string{
		"-machine", "q35", "-accel", l.accel, "-cpu", "max", "-smp", fmt.Sprint(l.o.Processors), "-m", fmt.Sprint(l.o.MiB),
		"-display", "none", "-monitor", "none", "-parallel", "none", "-serial", "stdio", "-no-reboot", "-nodefaults",
		"-kernel", kernel, "-initrd", initrd,
		"-append", fmt.Sprintf("console=ttyS0 quiet panic=-1 net.ifnames=0 lab.node=%d", n),
		"-fsdev", "local,id=machine,path=/,security_model=none,readonly=on,multidevs=remap",
		"-device", "virtio-9p-pci,fsdev=machine,mount_tag=machine",
		"-fsdev", "local,id=out,path=" + l.o.Out + ",security_model=none",
		"-device", "virtio-9p-pci,fsdev=out,mount_tag=out",
	}
	for net := range 3 {
		end := func(n int) string { return filepath.Join(l.dir, fmt.Sprintf("net%d-%d", net, n)) }
		args = append(args,
			"-netdev", fmt.Sprintf("dgram,id=n%d,local.type=unix,local.path=%s,remote.type=unix,remote.path=%s", net, end(n), end(3-n)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=n%d,mac=52:54:00:77:%02x:%02x", net, net, n))
	}
	return append(args,
		"-netdev", "user,id=agent,restrict=on,hostfwd=tcp:"+port+"-10.0.2.15:7070",
		"-device", fmt.Sprintf("virtio-net-pci,netdev=agent,mac=52:54:00:77:03:%02x", n))
}

// Close ends the hosts and removes what the lab made. It is idempotent.
func (l *Lab) Close() error {
	var errs []error
	for _, m := range l.machines {
		errs = append(errs, m.close())
	}
	l.machines = nil
	if l.dir != "" {
		errs = append(errs, os.RemoveAll(l.dir))
	}
	return errors.Join(errs...)
}
