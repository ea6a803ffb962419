package link

import (
	"fmt"
	"os"
	"sync/atomic"
)

// readBuffer is what a quiet carrier reads into.
const readBuffer = 128 << 10

// assembler is a carrier's receiving side: it makes records of bytes, and
// matches descriptors with the bytes they came with. Everything it reads is
// untrusted.
type assembler struct {
	max int // largest payload
	// fill reads some bytes, at least one, and the descriptors that came with
	// them, which are the assembler's whatever err says.
	fill    func(p []byte) (n int, fds []int, err error)
	closeFD func(int)
	newFile func(fd int) *os.File

	moved atomic.Uint64 // bytes that came
	buf   []byte
	r, w  int
	spare slack
	need  int // the biggest record seen since the buffer was last empty
	// held are descriptors without a record so far: at most one set outside
	// next, two inside.
	held []fileSet
	err  error // final
}

// fileSet is the descriptors that came with buf[from:to].
type fileSet struct {
	from, to int
	fds      []int
}

// next appends at least one record to dst, or fails for good. Records before a
// violation are still delivered.
func (a *assembler) next(dst []Record) ([]Record, error) {
	if a.err == nil {
		a.compact()
	}
	for start := len(dst); a.err == nil; {
		a.grow()
		n, fds, err := a.fill(a.buf[a.w:])
		if len(fds) > 0 {
			a.held = append(a.held, fileSet{a.w, a.w + n, fds})
		}
		if err == nil {
			a.w += n
			a.moved.Add(uint64(n))
			dst, err = a.parse(dst)
		}
		if err != nil {
			a.fail(err)
		}
		if len(dst) > start {
			return dst, nil
		}
	}
	return dst, a.err
}

// compact moves what is left of the buffer to its front.
func (a *assembler) compact() {
	if a.r == 0 {
		return
	}
	if a.r == a.w {
		if a.spare.tooBig(len(a.buf), a.need, readBuffer) {
			a.buf = nil
		}
		a.r, a.w, a.need = 0, 0, 0
		return // and nothing is held: no descriptor is of a later byte
	}
	copy(a.buf, a.buf[a.r:a.w])
	for i := range a.held {
		a.held[i].from = max(a.held[i].from-a.r, 0)
		a.held[i].to -= a.r
	}
	a.r, a.w = 0, a.w-a.r
}

// grow makes room for the rest of the record at the front.
func (a *assembler) grow() {
	size := max(readBuffer, a.need)
	if size <= len(a.buf) {
		return
	}
	if len(a.buf) > 0 {
		// Double, so that records of growing sizes do not reallocate each.
		size = max(size, min(2*len(a.buf), HeaderSize+a.max))
	}
	buf := make([]byte, size)
	copy(buf, a.buf[:a.w])
	a.buf = buf
}

// parse appends the whole records of buf[r:w] to dst.
func (a *assembler) parse(dst []Record) ([]Record, error) {
	for a.w-a.r >= HeaderSize {
		b := a.buf[a.r:a.w]
		h, err := decodeHeader(b, a.max)
		if err != nil {
			return dst, err
		}
		end := HeaderSize + h.size
		a.need = max(a.need, end)
		if len(b) < end {
			break
		}
		rec := Record{Type: h.typ, Endpoint: h.endpoint, ID: h.id, Payload: b[HeaderSize:end:end]}
		if h.files > 0 {
			if rec.Files, err = a.claim(h.files); err != nil {
				return dst, err
			}
		}
		dst = append(dst, rec)
		a.r += end
	}
	// A set can still find its record only if that is the unfinished one; any
	// other would let the peer pile up descriptors here.
	if len(a.held) > 1 || len(a.held) == 1 && !a.covers(a.held[0]) {
		return dst, fmt.Errorf("%w: file descriptors without a record", ErrViolation)
	}
	return dst, nil
}

// covers reports whether the set came with the first byte of the record at r.
func (a *assembler) covers(s fileSet) bool { return s.from <= a.r && a.r < s.to }

// claim takes the descriptors of the record at r.
func (a *assembler) claim(n int) ([]*os.File, error) {
	if len(a.held) == 0 || !a.covers(a.held[0]) {
		return nil, fmt.Errorf("%w: %d files announced, none came", ErrViolation, n)
	}
	fds := a.held[0].fds
	if len(fds) != n {
		return nil, fmt.Errorf("%w: %d files announced, %d came", ErrViolation, n, len(fds))
	}
	a.held = append(a.held[:0], a.held[1:]...)
	files := make([]*os.File, len(fds))
	for i, fd := range fds {
		files[i] = a.newFile(fd)
	}
	return files, nil
}

// fail makes err final and releases everything.
func (a *assembler) fail(err error) {
	if a.err == nil {
		a.err = err
	}
	for _, s := range a.held {
		for _, fd := range s.fds {
			a.closeFD(fd)
		}
	}
	a.held = nil
}
