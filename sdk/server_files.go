package sdk

import (
	"context"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
)

// tagWait is how long the file of a region waits for the call that names it.
// The host sends both at once; a file whose call never comes is one that the
// host has given up.
const tagWait = time.Minute

// taggedFile is the file of a region that came over the link ahead of its call.
type taggedFile struct {
	tag   uint64
	file  *os.File
	timer *time.Timer
}

func (f taggedFile) drop() {
	f.timer.Stop()
	_ = f.file.Close()
}

// keepTagged stores the file of a region until Register asks for it, or for
// tagWait. If there is no room the oldest one goes. A record has one file, and
// a tag is used once.
func (s *server) keepTagged(tag uint64, files []*os.File) {
	s.mu.Lock()
	again := slices.ContainsFunc(s.mu.tagged, func(f taggedFile) bool { return f.tag == tag })
	var gone []taggedFile
	if len(files) == 1 && !again && !s.mu.linkEnded {
		timer := time.AfterFunc(tagWait, func() {
			if f := s.takeTagged(tag); f != nil {
				_ = f.Close()
			}
		})
		s.mu.tagged = append(s.mu.tagged, taggedFile{tag, files[0], timer})
		if len(s.mu.tagged) > bounds.RegionFiles {
			gone = append(gone, s.mu.tagged[0])
			s.mu.tagged = slices.Delete(s.mu.tagged, 0, 1)
		}
		files = nil
	}
	s.mu.Unlock()
	for _, f := range gone {
		f.drop()
	}
	for _, f := range files {
		_ = f.Close()
	}
	if len(gone)+len(files) > 0 {
		s.log.Warn("files of regions were dropped: too many wait for their call, or a record of files is malformed", "dropped", len(gone)+len(files))
	}
	s.taggedCame.tell()
}

// takeTagged returns the file with that tag, if it has come.
func (s *server) takeTagged(tag uint64) *os.File {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.mu.tagged, func(f taggedFile) bool { return f.tag == tag })
	if i < 0 {
		return nil
	}
	f := s.mu.tagged[i]
	s.mu.tagged = slices.Delete(s.mu.tagged, i, i+1)
	f.timer.Stop()
	return f.file
}

// awaitTagged waits for the file with that tag: it travels on another channel
// than the call that names it.
func (s *server) awaitTagged(ctx context.Context, tag uint64) (*os.File, error) {
	for {
		came := s.taggedCame.next()
		if f := s.takeTagged(tag); f != nil {
			return f, nil
		}
		select {
		case <-came:
		case <-ctx.Done():
			return nil, Errorf(DeadlineExceeded, "the region's file has not come over the link: %w", ctx.Err())
		case <-s.linkGone:
			return nil, Errorf(Closed, "the link ended before the region's file came")
		}
	}
}

// broadcast wakes everybody who waits. The zero value is ready.
type broadcast struct {
	mu sync.Mutex
	ch chan struct{}
}

// next is closed by the next tell.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) tell() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
