package rpctransport

// large is a frame that is sent in chunks.
type large struct {
	id   uint64
	data []byte
	sent int // bytes that were given to the stream
}

func (l *large) begun() bool { return l.sent > 0 }

// next takes the next chunk. total is not 0 with the first one, last says that
// there are no more.
func (l *large) next() (total uint64, chunk []byte, last bool) {
	if !l.begun() {
		total = uint64(len(l.data))
	}
	end := min(l.sent+chunkBytes, len(l.data))
	chunk = l.data[l.sent:end:end]
	l.sent = end
	return total, chunk, end == len(l.data)
}

// assembly puts a peer's large frame together: one at a time. It holds nothing
// between two of them, and never more than firstGrowth or four times what the
// peer has sent of it, whatever length it announced.
type assembly struct {
	total int // 0: none is under way
	got   []byte
}

const firstGrowth = 256 << 10

// take takes what a packet says of a large frame, and returns the frame with
// its last chunk.
func (a *assembly) take(total uint64, chunk []byte) (frame []byte, err error) {
	switch {
	case total == 0 && len(chunk) == 0:
		return nil, nil
	case total != 0 && (a.total != 0 || total <= maxPacked || total > maxFrame),
		total == 0 && a.total == 0,
		len(chunk) == 0:
		return nil, errMalformed("chunk")
	case total != 0:
		a.total = int(total)
	}
	if len(chunk) > a.total-len(a.got) {
		return nil, errMalformed("chunk")
	}
	if need := len(a.got) + len(chunk); need > cap(a.got) {
		grown := make([]byte, len(a.got), min(a.total, max(firstGrowth, 4*need)))
		copy(grown, a.got)
		a.got = grown
	}
	a.got = append(a.got, chunk...)
	if len(a.got) < a.total {
		return nil, nil
	}
	frame = a.got
	*a = assembly{}
	return frame, nil
}
