package lease

import (
	"sync"
	"testing"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestLeases(t *testing.T) {
	var l Table[string]
	if !isClosed(l.Idle("a")) || l.Held("a") != 0 {
		t.Error("an unknown name is held")
	}
	if !l.Acquire("a") || !l.Acquire("a") || l.Held("a") != 2 {
		t.Errorf("held %d", l.Held("a"))
	}
	idle := l.Idle("a")
	l.Retire("a")
	l.Retire("a")
	if l.Acquire("a") {
		t.Error("a retired name was acquired")
	}
	l.Release("a")
	if isClosed(idle) || l.Held("a") != 1 {
		t.Error("idle with a lease held")
	}
	l.Forget("a")
	if l.Acquire("a") {
		t.Error("forgotten although it is held")
	}
	l.Release("a")
	if !isClosed(idle) || !isClosed(l.Idle("a")) {
		t.Error("not idle without a lease")
	}
	if l.Acquire("a") || l.Len() != 1 {
		t.Error("retirement ended with the last lease")
	}
	l.Forget("a")
	if l.Len() != 0 {
		t.Errorf("%d names are kept", l.Len())
	}
	if !l.Acquire("b") {
		t.Error("b cannot be acquired")
	}
	l.Release("b")
	if l.Len() != 0 {
		t.Errorf("%d names are kept", l.Len())
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("released more often than acquired")
			}
		}()
		l.Release("b")
	}()
}

func TestManyUsersOfOneName(t *testing.T) {
	var l Table[int]
	var users sync.WaitGroup
	l.Acquire(1)
	for range 8 {
		users.Go(func() {
			for range 1000 {
				if l.Acquire(1) {
					l.Release(1)
				}
			}
		})
	}
	l.Retire(1)
	l.Release(1)
	<-l.Idle(1)
	users.Wait()
	if l.Held(1) != 0 || l.Acquire(1) {
		t.Error("held after its end")
	}
}
