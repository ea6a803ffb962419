package rdmatransport

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// What to do about what this machine lacks.
const (
	raiseMemlock = "raise the memlock limit: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for docker, or the capability IPC_LOCK"
	openDevices  = "let this user open /dev/infiniband/uverbs* (group rdma on Debian; in a container --device /dev/infiniband)"
	needDevice   = "an RDMA device with its driver is needed: see `rdma link` or `ls /sys/class/infiniband`"
)

// advise adds to a failed call what to do about it.
func advise(err error) error {
	var missing *verbs.MissingError
	switch {
	case errors.As(err, &missing):
		return err // it says so itself
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		return fmt.Errorf("%w: %s", err, openDevices)
	case noMemory(err):
		return fmt.Errorf("%w: memory that may be locked is %s: %s", err, memlock(), raiseMemlock)
	case errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: %s", err, needDevice)
	}
	return err
}

// lockedLimit is how many bytes this process may lock.
func lockedLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur > math.MaxInt || mayLock() {
		return math.MaxInt
	}
	return int(l.Cur)
}

// mayLock says whether the process has the capability that lifts the limit.
func mayLock() bool {
	const ipcLock = 14
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if set, ok := strings.CutPrefix(line, "CapEff:"); ok {
			caps, err := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			return err == nil && caps>>ipcLock&1 == 1
		}
	}
	return false
}

// memlock is the limit, for people.
func memlock() string {
	if n := lockedLimit(); n < math.MaxInt {
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return "unlimited"
}
