package cuda

import (
	"errors"
	"runtime"
	"sync"
)

// Thread runs functions one after the other on one locked operating system
// thread, where a context can be current. Implementations of [Device] use it.
type Thread struct {
	work chan *job
	gone chan struct{}

	mu       sync.RWMutex // held for reading while a job is handed over
	isClosed bool
}

// errExited is Do's answer for a function that has called [runtime.Goexit].
var errExited = errors.New("the function has ended its goroutine, as Fatal and Skip of a test do")

type job struct {
	do   func() error
	err  error
	done chan struct{}
}

// jobs keeps them for the next call.
var jobs = sync.Pool{New: func() any { return &job{done: make(chan struct{}, 1)} }}

// StartThread starts a thread. Close ends it.
func StartThread() *Thread {
	t := &Thread{work: make(chan *job, 64), gone: make(chan struct{})}
	go t.run()
	return t
}

func (t *Thread) run() {
	// Never unlocked: the operating system's thread ends with the goroutine, and
	// whatever was current on it.
	runtime.LockOSThread()
	defer close(t.gone)
	t.serve()
}

func (t *Thread) serve() {
	var j *job
	defer func() {
		if p := recover(); p != nil {
			panic(p)
		}
		if j != nil {
			// The goroutine ends with this function, which therefore goes on in
			// its place: nobody may wait for a thread that has gone.
			j.err = errExited
			j.done <- struct{}{}
			t.serve()
		}
	}()
	for j = range t.work {
		j.err = j.do()
		j.done <- struct{}{}
	}
	j = nil
}

// Do runs f on the thread and returns its error, or [ErrClosed].
func (t *Thread) Do(f func() error) error {
	t.mu.RLock()
	if t.isClosed {
		t.mu.RUnlock()
		return ErrClosed
	}
	j := jobs.Get().(*job)
	j.do = f
	t.work <- j
	t.mu.RUnlock()
	<-j.done
	err := j.err
	j.do, j.err = nil, nil
	jobs.Put(j)
	return err
}

// Close runs what was handed over before, then last, and ends the thread. Only
// the first call does; it returns last's error.
func (t *Thread) Close(last func() error) error {
	t.mu.Lock()
	if t.isClosed {
		t.mu.Unlock()
		<-t.gone
		return nil
	}
	t.isClosed = true
	j := &job{do: last, done: make(chan struct{}, 1)}
	t.work <- j
	close(t.work)
	t.mu.Unlock()
	<-t.gone
	return j.err
}
