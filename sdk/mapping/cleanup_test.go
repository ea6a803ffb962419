package mapping

import (
	"errors"
	"slices"
	"testing"
)

func TestCleanupOrder(t *testing.T) {
	var c Cleanup
	var got []string
	refuse := map[string]int{}
	add := func(stage Stage, name string) *Step {
		return c.Add(stage, name, func() error {
			if refuse[name]--; refuse[name] >= 0 {
				return errors.New("not now")
			}
			got = append(got, name)
			return nil
		})
	}
	add(CloseDescriptor, "fd 1")
	add(ReleaseHandle, "handle 1")
	early := add(ReleaseHandle, "handle 2")
	add(FreeRange, "range 1")
	add(Unmap, "map 1")
	add(CloseMapping, "ipc")
	add(FreeRange, "range 2")
	add(Unmap, "map 2")
	add(CloseDescriptor, "fd 2")
	if err := early.Now(); err != nil {
		t.Fatal(err)
	}
	refuse["range 1"] = 2
	for range 2 {
		if s, err := c.run(); s == nil || s.name != "range 1" || err == nil {
			t.Fatalf("%v, %v", s, err)
		}
	}
	want := []string{"handle 2", "map 2", "map 1", "range 2"}
	if !slices.Equal(got, want) {
		t.Fatalf("%q, want %q: nothing passes what is refused", got, want)
	}
	if s, err := c.run(); s != nil || err != nil {
		t.Fatal(s, err)
	}
	want = append(want, "range 1", "ipc", "handle 1", "fd 2", "fd 1")
	if !slices.Equal(got, want) {
		t.Fatalf("%q, want %q", got, want)
	}
	if s, err := c.run(); s != nil || err != nil || len(got) != len(want) {
		t.Fatal("something ran twice")
	}
}

func TestRefusedEarlyStepStays(t *testing.T) {
	var c Cleanup
	calls := 0
	s := c.Add(ReleaseHandle, "handle", func() error {
		if calls++; calls == 1 {
			panic("first")
		}
		return nil
	})
	if err := s.Now(); err == nil || err.Error() != "panic: first" {
		t.Fatal(err)
	}
	if s, err := c.run(); s != nil || err != nil || calls != 2 {
		t.Fatal(s, err, calls)
	}
}
