package sdk

import (
	"errors"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/hawser-transport/hawser/sdk/internal/bounds"
	"github.com/hawser-transport/hawser/sdk/internal/link"
)

// serveLink reads the link until it ends.
func (s *server) serveLink(c link.Carrier) {
	s.carrier = c
	close(s.linkOpen)
	r := linkReader{s: s, out: outbound{s: s, outcomes: link.More}}
	var recs []link.Record
	var err error
	for err == nil {
		recs, err = c.Recv(recs[:0])
		r.handle(recs)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, link.ErrClosed) {
		s.log.Error("the link has failed", "err", err)
	}
	_ = c.Close()
	s.endLink()
}

// stopWaiting ends those endpoints that wait for their window, now or later:
// the transport is about to be closed, which has to wait for its goroutines.
func (s *server) stopWaiting() {
	s.mu.Lock()
	s.mu.closing = true
	endpoints := slices.Collect(maps.Values(s.mu.endpoints))
	s.mu.Unlock()
	for _, e := range endpoints {
		e.window.giveUp()
	}
}

// endLink closes what the host can no longer use.
func (s *server) endLink() {
	s.mu.Lock()
	s.mu.linkEnded = true
	endpoints := slices.Collect(maps.Values(s.mu.endpoints))
	files, tagged := s.mu.files, s.mu.tagged
	s.mu.files, s.mu.tagged = nil, nil
	s.mu.Unlock()
	for _, f := range files {
		_ = f.Close()
	}
	for _, f := range tagged {
		f.drop()
	}
	for _, e := range endpoints {
		e.close()
	}
	close(s.linkGone)
}

// linkReader handles batches of records on the reader's goroutine. Frames of
// one endpoint are gathered over a batch and given to the transport at once.
type linkReader struct {
	s      *server
	queued []*servedEndpoint
	out    outbound
}

func (r *linkReader) handle(recs []link.Record) {
	for i := range recs {
		rec := &recs[i]
		switch rec.Type {
		case link.Send:
			r.gather(rec)
		case link.CloseEndpoint:
			r.flush()
			if e := r.s.endpoint(rec.Endpoint); e != nil {
				e.close()
			}
		case link.Ping:
			r.flush()
			r.out.records = append(r.out.records, link.Record{Type: link.Pong, ID: rec.ID})
			r.out.send(0)
		case link.Window:
			if e := r.s.endpoint(rec.Endpoint); e != nil {
				e.window.widen(rec.ID)
			}
		case link.Files:
			if rec.ID == 0 {
				r.s.keepFiles(rec.Files)
			} else {
				r.s.keepTagged(rec.ID, rec.Files)
			}
		default:
			r.s.log.Warn("record that only a plugin sends", "type", rec.Type)
		}
	}
	r.flush()
}

func (r *linkReader) gather(rec *link.Record) {
	e := r.s.endpoint(rec.Endpoint)
	if e == nil {
		return // it has ended, as the host knows or soon will
	}
	e.frames = append(e.frames, Frame{ID: rec.ID, Data: rec.Payload})
	if !e.queued {
		e.queued = true
		r.queued = append(r.queued, e)
	}
}

func (r *linkReader) flush() {
	for i, e := range r.queued {
		e.queued = false
		e.send(&r.out)
		r.queued[i] = nil
	}
	r.queued = r.queued[:0]
}

// keepFiles stores listeners until Configure asks for them.
func (s *server) keepFiles(files []*os.File) {
	s.mu.Lock()
	if !s.mu.filesTaken && !s.mu.linkEnded {
		if room := bounds.Listeners - len(s.mu.files); room < len(files) {
			s.mu.files = append(s.mu.files, files[:room]...)
			files = files[room:]
		} else {
			s.mu.files = append(s.mu.files, files...)
			files = nil
		}
	}
	s.mu.Unlock()
	for _, f := range files {
		_ = f.Close()
	}
	select {
	case s.filesCame <- struct{}{}:
	default:
	}
}
