package cuda

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestThreadOutlivesGoexit: whoever calls a test's Fatal on the thread does not
// hang, nor anybody after.
func TestThreadOutlivesGoexit(t *testing.T) {
	th := StartThread()
	at := func() (tid int) {
		if err := th.Do(func() error { tid = unix.Gettid(); return nil }); err != nil {
			t.Error(err)
		}
		return tid
	}
	before := at()
	for range 2 {
		if err := th.Do(func() error { runtime.Goexit(); return nil }); !errors.Is(err, errExited) {
			t.Errorf("%v, want %v", err, errExited)
		}
	}
	if after := at(); after != before {
		t.Errorf("thread %d, then %d, where no context is current", before, after)
	}
	last := errors.New("the last")
	if err := th.Close(func() error { return last }); !errors.Is(err, last) {
		t.Error(err)
	}
}
