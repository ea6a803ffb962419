//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	secretVariable = "LAB_SECRET"
	// listen is where the agent listens: the user network's address of every
	// host, see package rdmalab.
	listen = "10.0.2.15:7070"
	root   = "/root"
)

// mounts make the host's root of the machine's file system, read-only below
// and a throw-away layer on top.
var mounts = []struct{ what, where, kind, options string }{
	{"tmpfs", "/rw", "tmpfs", "size=75%"},
	{"machine", "/lower", "9p", "trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro"},
	{"overlay", root, "overlay", "lowerdir=/lower,upperdir=/rw/upper,workdir=/rw/work"},
	{"proc", root + "/proc", "proc", ""},
	{"sysfs", root + "/sys", "sysfs", ""},
	{"devtmpfs", root + "/dev", "devtmpfs", ""},
	{"tmpfs", root + "/dev/shm", "tmpfs", ""},
	{"tmpfs", root + "/tmp/lab", "tmpfs", ""},
	{"out", root + "/out", "9p", "trans=virtio,version=9p2000.L,msize=512000"},
}

// boot makes the host and runs the agent until that ends.
func boot() error {
	secret, err := os.ReadFile("/secret")
	if err != nil {
		return err
	}
	if err := loadModules(); err != nil {
		return err
	}
	for _, m := range mounts {
		if err := os.MkdirAll(m.where, 0o755); err != nil {
			return err
		}
		var flags uintptr
		if err := unix.Mount(m.what, m.where, m.kind, flags, m.options); err != nil {
			return fmt.Errorf("mount %s at %s: %w", m.what, m.where, err)
		}
		if m.where == "/rw" {
			if err := errors.Join(os.Mkdir("/rw/upper", 0o755), os.Mkdir("/rw/work", 0o755)); err != nil {
				return err
			}
		}
	}
	self, err := os.ReadFile("/init")
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Chroot(root), os.Chdir("/")); err != nil {
		return err
	}
	if err := os.WriteFile("/dev/shm/agent", self, 0o700); err != nil {
		return err
	}
	environment()
	if err := links(); err != nil {
		return err
	}
	return runAgent(string(secret))
}

// loadModules loads what lies in /mods, in the order of the names.
func loadModules() error {
	files, err := filepath.Glob("/mods/*.ko")
	if err != nil {
		return err
	}
	slices.Sort(files)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("load %s: %w", name, err)
		}
	}
	return nil
}

func environment() {
	os.Clearenv()
	for k, v := range map[string]string{
		"PATH": "/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/root", "TMPDIR": "/tmp/lab",
	} {
		_ = os.Setenv(k, v)
	}
	unlimited := unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unlimited)
	_ = unix.Sethostname([]byte("host" + node()))
}

// node is the host's number, which the kernel's command line names.
func node() string {
	line, _ := os.ReadFile("/proc/cmdline")
	for _, w := range strings.Fields(string(line)) {
		if n, ok := strings.CutPrefix(w, "lab.node="); ok {
			return n
		}
	}
	return "0"
}

// links brings up the network: two rails with an RDMA device each, the
// network between the hosts that is no rail, and the agent's.
func links() error {
	n := node()
	commands := []string{"ip link set lo up"}
	for i := range 3 {
		commands = append(commands, fmt.Sprintf("ip addr add 10.77.%d.%s/24 dev eth%d", i, n, i), fmt.Sprintf("ip link set eth%d up", i))
	}
	commands = append(commands, "ip addr add 10.0.2.15/24 dev eth3", "ip link set eth3 up",
		"rdma link add rxe0 type rxe netdev eth0", "rdma link add rxe1 type rxe netdev eth1")
	for _, c := range commands {
		words := strings.Fields(c)
		if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", c, err, out)
		}
	}
	return nil
}

// runAgent starts this program again, and reaps whatever else loses its parent
// until that ends.
func runAgent(secret string) error {
	p, err := os.StartProcess("/dev/shm/agent", []string{"agent", listen}, &os.ProcAttr{
		Dir: "/", Env: append(os.Environ(), secretVariable+"="+secret),
		Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return err
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == p.Pid {
			return fmt.Errorf("the agent ended: %v %v", status, err)
		}
	}
}

func powerOff() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}
