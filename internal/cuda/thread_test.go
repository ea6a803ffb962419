package cuda

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestThread(t *testing.T) {
	th := StartThread()
	running, ran := 0, 0 // only the thread touches them
	var callers sync.WaitGroup
	for i := range 50 {
		callers.Go(func() {
			for j := range 20 {
				mine := fmt.Errorf("%d of %d", j, i)
				err := th.Do(func() error {
					running++
					ran++
					if running != 1 {
						t.Error("two at a time")
					}
					running--
					return mine
				})
				if err != mine {
					t.Errorf("%v came back for %v", err, mine)
				}
			}
		})
	}
	callers.Wait()
	if err := th.Close(func() error { return fmt.Errorf("%d", ran) }); err == nil || err.Error() != "1000" {
		t.Errorf("%v ran", err)
	}
}

// TestThreadCloses: each call ran or says that it did not.
func TestThreadCloses(t *testing.T) {
	for range 50 {
		th := StartThread()
		ran, last := 0, false // only the thread touches them
		var callers sync.WaitGroup
		answered := make(chan bool, 8)
		for range cap(answered) {
			callers.Go(func() {
				err := th.Do(func() error {
					if last {
						t.Error("ran after the last")
					}
					ran++
					return nil
				})
				if err != nil && !errors.Is(err, ErrClosed) {
					t.Error(err)
				}
				answered <- err == nil
			})
		}
		n := 0
		for range 2 {
			callers.Go(func() {
				th.Close(func() error { last = true; return nil })
			})
		}
		callers.Wait()
		for range cap(answered) {
			if <-answered {
				n++
			}
		}
		if n != ran || !last {
			t.Fatalf("%d ran, %d were told so; the last: %v", ran, n, last)
		}
	}
}

func TestErrors(t *testing.T) {
	err := error(&CallError{"cuMemCreate", "2 bytes", NotPermitted})
	wrapped := fmt.Errorf("somewhere: %w", err)
	if !errors.Is(wrapped, NotPermitted) || errors.Is(wrapped, NotSupported) || IsLost(wrapped) {
		t.Errorf("%v", wrapped)
	}
	if !IsLost(errors.Join(wrapped, &CallError{Result: LaunchFailed})) || IsLost(errors.New("other")) || IsLost(nil) {
		t.Error("what costs the context")
	}
	for k, want := range map[Kind]string{0: "not shareable", Fabric | PosixFD: "fabric+fd", IPC: "ipc"} {
		if k.String() != want {
			t.Errorf("%d is %q", k, k)
		}
	}
}
