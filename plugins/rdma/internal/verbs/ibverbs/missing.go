//go:build linux && cgo

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// missing says why the library lists no device, nil if there simply is none.
func (h host) missing() error {
	class := h.class("")
	if _, err := os.Stat(class); err != nil {
		return &verbs.MissingError{
			What: "RDMA support in the kernel: no " + class,
			Do:   "load the driver of the network card (modprobe mlx5_ib; rdma_rxe for Soft-RoCE), on the host if this is a container",
			Err:  cause(err),
		}
	}
	device := h.present()
	if device == "" {
		return nil
	}
	if nodes, _ := filepath.Glob(filepath.Join(h.root, "dev/infiniband/uverbs*")); len(nodes) == 0 {
		return &verbs.MissingError{
			What: fmt.Sprintf("%s, although there is %s", filepath.Join(h.root, "dev/infiniband/uverbs*"), device),
			Do:   "load ib_uverbs (modprobe ib_uverbs); in a container, give it the devices (--device=/dev/infiniband)",
			Err:  os.ErrNotExist, Present: device,
		}
	}
	return &verbs.MissingError{
		What: "libibverbs' driver for " + device,
		Do:   "install the drivers (Debian: ibverbs-providers) of the same version as libibverbs", Present: device,
	}
}

// present is the first device that the kernel has, "" if it has none.
func (h host) present() string {
	for _, name := range names(h.class("")) {
		return name
	}
	return ""
}

// accessible says what keeps this process from a device's node.
func (h host) accessible(node string) error {
	path := filepath.Join(h.root, "dev/infiniband", node)
	return inaccessible(path, unix.Access(path, unix.R_OK|unix.W_OK))
}

func inaccessible(path string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &verbs.MissingError{
			What: "permission to read and write " + path,
			Do:   "run as root or in the group that owns it (a udev rule can make it mode 0666)", Err: err,
		}
	}
	return &verbs.MissingError{
		What: path, Do: "load ib_uverbs (modprobe ib_uverbs); in a container, give it the device (--device=" + path + ")", Err: err,
	}
}

// memlock says that registering failed at the limit of locked memory, if there
// is one. What the call failed with is still in the error.
func memlock(size int, failed error) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return failed
	}
	return &verbs.MissingError{
		What: fmt.Sprintf("locked memory for %d KiB: the process's limit is %d KiB", size>>10, limit.Cur>>10),
		Do:   "raise RLIMIT_MEMLOCK (ulimit -l unlimited; LimitMEMLOCK=infinity in a systemd unit; --ulimit memlock=-1 for a container)",
		Err:  failed,
	}
}

// cause drops the path, which the message has already.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
