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
	"github.com/hawser-transport/hawser/sdk"
)

// What to do about what this machine lacks.
const (
	raiseMemlock = "raise the memlock limit: ulimit -l unlimited, LimitMEMLOCK=infinity in a systemd unit, --ulimit memlock=-1 for docker, or the capability IPC_LOCK"
	openDevices  = "let this user open /dev/infiniband/uverbs* (group rdma on Debian; in a container --device /dev/infiniband)"
	needDevice   = "an RDMA device with its driver is needed: see `rdma link` or `ls /sys/class/infiniband`"
)

// advise adds to a failed call what to do about it.
func advise(err error) error {
	if _, do := remedy(err); do != "" {
		return fmt.Errorf("%w: %s", err, do)
	}
	return err
}

// remedy takes apart what failed and what to do about it. For an error that
// says so itself there is nothing to add.
func remedy(err error) (what, do string) {
	var missing *verbs.MissingError
	switch {
	case errors.As(err, &missing), errors.Is(err, sdk.InvalidArgument):
	case errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM):
		do = openDevices
	case noMemory(err):
		do = fmt.Sprintf("memory that may be locked is %s: %s", memlock(), raiseMemlock)
	case errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENOENT):
		do = needDevice
	}
	return err.Error(), do
}

// lockedLimit is how many bytes this process may lock.
func lockedLimit() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur > math.MaxInt || mayLock() {
		return math.MaxInt
	}
	return int(l.Cur)
}

// receiveBuffers is how many of the wanted receive buffers are made where so
// many bytes may be locked: half of them is for receives, a quarter for sends;
// queues need some, too.
func receiveBuffers(wanted, lockable int) int {
	return min(wanted, max(lockable/2/maxFrame, minReceives))
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
