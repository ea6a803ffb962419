package sdk

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/pb"
)

// kept is a file that came over the link; the other end tells when it was
// closed.
func kept(t *testing.T) (file *os.File, closed func() bool) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return w, func() bool {
		if w.SetDeadline(time.Time{}) == nil {
			return false
		}
		_, err := r.Read(make([]byte, 1))
		return err == io.EOF
	}
}

func filing() *server {
	return newServer(nil, Description{}, nil, slog.New(slog.DiscardHandler))
}

func TestTaggedFilesWaitForTheirCall(t *testing.T) {
	s := filing()
	f, closed := kept(t)
	got := make(chan *os.File)
	go func() {
		f, err := s.awaitTagged(context.Background(), 7)
		if err != nil {
			t.Error(err)
		}
		got <- f
	}()
	other, _ := kept(t)
	s.keepTagged(6, []*os.File{other})
	s.keepTagged(7, []*os.File{f})
	if <-got != f || closed() {
		t.Error("another file, or a closed one")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.awaitTagged(ctx, 7); !errors.Is(err, DeadlineExceeded) {
		t.Errorf("a second time: %v", err)
	}
}

func TestTaggedFilesAreBounded(t *testing.T) {
	s := filing()
	var closed []func() bool
	keep := func(tag uint64, n int) {
		var files []*os.File
		for range n {
			f, c := kept(t)
			files, closed = append(files, f), append(closed, c)
		}
		s.keepTagged(tag, files)
	}
	for i := range bounds.RegionFiles {
		keep(uint64(i+1), 1)
	}
	for i, c := range closed {
		if c() {
			t.Errorf("file %d is closed", i)
		}
	}
	keep(1000, 1) // the oldest goes
	keep(1000, 1) // not a second one, nor two of a tag
	keep(1001, 2)
	n := bounds.RegionFiles
	for i, want := range map[int]bool{0: true, 1: false, n - 1: false, n: false, n + 1: true, n + 2: true, n + 3: true} {
		if closed[i]() != want {
			t.Errorf("file %d is closed: %t", i, !want)
		}
	}
	s.endLink()
	keep(1002, 1)
	for i, c := range closed {
		if !c() {
			t.Errorf("file %d outlives the link", i)
		}
	}
	if _, err := s.awaitTagged(context.Background(), 5); !errors.Is(err, Closed) {
		t.Error(err)
	}
}

func TestTaggedFilesDoNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := filing()
		f, closed := kept(t)
		s.keepTagged(1, []*os.File{f})
		time.Sleep(tagWait - 1)
		if closed() {
			t.Error("closed early")
		}
		time.Sleep(2 * time.Nanosecond)
		synctest.Wait()
		if !closed() {
			t.Error("it is open")
		}
	})
}

// A call that is refused closes the file that came for it.
func TestAMalformedRegionsFileIsClosed(t *testing.T) {
	s := filing()
	f, closed := kept(t)
	s.keepTagged(1, []*os.File{f})
	_, err := s.register(context.Background(), nil, &pb.Region{File: 1, Capability: make([]byte, 16), DeviceUuid: make([]byte, 16)})
	if !errors.Is(err, InvalidArgument) || !closed() {
		t.Errorf("%v, closed %t", err, closed())
	}
}
