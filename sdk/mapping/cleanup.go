package mapping

import (
	"fmt"
	"slices"
	"sync"
)

// Stage is when a step of a cleanup has its turn. Lower ones come first; of
// one stage the step that was added last does.
type Stage uint8

const (
	// Unmap takes exactly what was mapped out of the address range.
	Unmap Stage = iota + 1
	// FreeRange gives the reserved address range back.
	FreeRange
	// CloseMapping closes what was opened as a whole, with its addresses.
	CloseMapping
	// ReleaseHandle drops references to the allocation.
	ReleaseHandle
	// CloseDescriptor closes file descriptors.
	CloseDescriptor
)

// Cleanup is what an import has acquired so far, as steps that give it back.
// It outlives a failed and a panicked import. It is safe for concurrent use;
// nothing is added any more once the import has returned.
type Cleanup struct {
	mu    sync.Mutex
	steps []*Step
}

// Step gives one resource back.
type Step struct {
	of    *Cleanup
	stage Stage
	name  string
	undo  func() error
}

// Add notes a resource: call it as soon as the resource is there, before
// anything else can fail. undo gives it back. It is called by one goroutine at a
// time, any, until it returns nil, and never again. An error, or a panic, means
// that the resource is still held. The name is for people: "unmap 64 KiB at
// 0x7f00".
func (c *Cleanup) Add(stage Stage, name string, undo func() error) *Step {
	s := &Step{of: c, stage: stage, name: name, undo: undo}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = append(c.steps, s)
	return s
}

// Now gives the resource back before its turn: an import that needs a handle
// no longer than it takes to map it. If it is refused the step stays and has
// its turn with the others. Only the importer calls it, while it imports.
func (s *Step) Now() error {
	err := s.run()
	if err == nil {
		s.of.remove(s)
	}
	return err
}

func (s *Step) run() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	return s.undo()
}

func (c *Cleanup) remove(s *Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.steps = slices.DeleteFunc(c.steps, func(o *Step) bool { return o == s })
}

// next returns the step whose turn it is, or nil.
func (c *Cleanup) next() *Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	var next *Step
	for _, s := range c.steps {
		if next == nil || s.stage <= next.stage {
			next = s
		}
	}
	return next
}

// run takes the steps in order. It stops at one that is refused, which it
// returns with the reason; nil means that nothing is left.
func (c *Cleanup) run() (*Step, error) {
	for s := c.next(); s != nil; s = c.next() {
		if err := s.Now(); err != nil {
			return s, err
		}
	}
	return nil, nil
}
