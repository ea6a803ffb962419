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
	l.Acquire("a")
	l.Acquire("a")
	l.Acquire("b")
	idle := l.Idle("a")
	if l.Held("a") != 2 || l.Held("b") != 1 || l.Len() != 2 {
		t.Errorf("held %d and %d", l.Held("a"), l.Held("b"))
	}
	l.Release("b")
	l.Release("a")
	if isClosed(idle) || isClosed(l.Idle("a")) || l.Held("a") != 1 {
		t.Error("idle with a lease held")
	}
	l.Release("a")
	if !isClosed(idle) || !isClosed(l.Idle("a")) || l.Len() != 0 {
		t.Error("not idle without a lease")
	}
	l.Acquire("a")
	if isClosed(l.Idle("a")) {
		t.Error("idle for ever")
	}
	l.Release("a")
	defer func() {
		if recover() == nil {
			t.Error("released more often than acquired")
		}
	}()
	l.Release("a")
}

func TestManyUsersOfOneName(t *testing.T) {
	var l Table[int]
	var users sync.WaitGroup
	for range 8 {
		l.Acquire(1)
		users.Go(func() {
			for range 1000 {
				l.Acquire(1)
				l.Release(1)
			}
			l.Release(1)
		})
	}
	<-l.Idle(1)
	if l.Held(1) != 0 {
		t.Errorf("%d held", l.Held(1))
	}
	users.Wait()
}
