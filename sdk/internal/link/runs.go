package link

import (
	"encoding/binary"
	"fmt"
	"math"
)

const (
	// RunSize is the size in bytes of one packed run.
	RunSize = 16
	// MaxRunIDs is how many ids the runs of one record may cover in all. It
	// stops a few bytes from standing for four billion completions.
	MaxRunIDs = 65536

	maxOutcome = 3  // sdk.Unknown
	maxCode    = 16 // sdk.OutcomeUnknown
)

// Run is a number of consecutive ids that ended in the same way. Outcome and
// Code are the sdk's. On the wire, little endian:
//
//	u64 first id | u32 count | u8 outcome | u8 code | u16 zero
type Run struct {
	First   uint64
	Count   uint32
	Outcome uint8
	Code    uint8
}

// Runs packs outcomes into the payload of a Complete record. The zero value is
// empty and ready.
type Runs struct {
	b    []byte
	ids  int
	last Run // what the last RunSize bytes of b hold
}

// Add appends one id's outcome, merged with the previous one where it can be.
// It returns false, and adds nothing, once the record is full.
func (r *Runs) Add(id uint64, outcome, code uint8) bool {
	if r.ids >= MaxRunIDs {
		return false
	}
	r.ids++
	l := &r.last
	if len(r.b) > 0 && l.Outcome == outcome && l.Code == code && id-l.First == uint64(l.Count) && id > l.First {
		l.Count++
		binary.LittleEndian.PutUint32(r.b[len(r.b)-RunSize+8:], l.Count)
		return true
	}
	*l = Run{First: id, Count: 1, Outcome: outcome, Code: code}
	r.b = binary.LittleEndian.AppendUint64(r.b, id)
	r.b = binary.LittleEndian.AppendUint32(r.b, 1)
	r.b = append(r.b, outcome, code, 0, 0)
	return true
}

// IDs is how many ids were added since Reset.
func (r *Runs) IDs() int { return r.ids }

// Payload is the packed form, valid until the next Add or Reset. Its size is
// at most RunSize for each id.
func (r *Runs) Payload() []byte { return r.b }

// Reset empties r and keeps its memory.
func (r *Runs) Reset() { r.b, r.ids = r.b[:0], 0 }

// DecodeRuns appends the runs of a Complete record's payload to dst. It is all
// or nothing: on error, which matches ErrViolation, dst comes back as it was.
// Whether the ids are pending is the caller's to check.
func DecodeRuns(dst []Run, payload []byte) ([]Run, error) {
	if len(payload)%RunSize != 0 {
		return dst, fmt.Errorf("%w: completions of %d bytes", ErrViolation, len(payload))
	}
	runs, ids := dst, uint64(0)
	for b := payload; len(b) > 0; b = b[RunSize:] {
		run := Run{
			First:   binary.LittleEndian.Uint64(b),
			Count:   binary.LittleEndian.Uint32(b[8:]),
			Outcome: b[12],
			Code:    b[13],
		}
		ids += uint64(run.Count)
		switch {
		case run.Count == 0:
			return dst, fmt.Errorf("%w: empty run of completions", ErrViolation)
		case ids > MaxRunIDs:
			return dst, fmt.Errorf("%w: over %d completions in one record", ErrViolation, MaxRunIDs)
		case run.First > math.MaxUint64-uint64(run.Count-1):
			return dst, fmt.Errorf("%w: completions beyond the last id", ErrViolation)
		case run.Outcome == 0 || run.Outcome > maxOutcome:
			return dst, fmt.Errorf("%w: unknown outcome %d", ErrViolation, run.Outcome)
		case run.Code > maxCode:
			return dst, fmt.Errorf("%w: unknown code %d", ErrViolation, run.Code)
		case b[14] != 0 || b[15] != 0:
			return dst, fmt.Errorf("%w: reserved bytes of a run are not zero", ErrViolation)
		}
		runs = append(runs, run)
	}
	return runs, nil
}
