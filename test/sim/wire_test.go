package sim

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// The frames' layout, written down a second time (docs/protocol.md).
const (
	headerSize   = 44
	typeCredit   = 3
	typeClose    = 6
	typeAck      = 9
	typeNotify   = 10
	window       = 4096
	magic        = "MCKC"
	entryBytes   = 256 // of bookkeeping, that an outbox counts per notification
	frameBytes   = headerSize + 8
	forgedPrefix = "forged"
)

type header struct {
	kind                      byte
	session, epoch, seq, aack uint64
}

func parse(f []byte) (h header, ok bool) {
	if len(f) < headerSize || string(f[:4]) != magic {
		return h, false
	}
	le := binary.LittleEndian
	return header{f[5], le.Uint64(f[8:]), le.Uint64(f[16:]), le.Uint64(f[24:]), le.Uint64(f[32:])}, true
}

func (h header) frame(payload []byte) []byte {
	le := binary.LittleEndian
	f := append([]byte(magic), 1, h.kind)
	flags := uint16(0)
	if h.kind == typeNotify || h.kind == typeCredit {
		flags = 1
	}
	f = le.AppendUint16(f, flags)
	for _, v := range []uint64{h.session, h.epoch, h.seq, h.aack} {
		f = le.AppendUint64(f, v)
	}
	f = le.AppendUint32(f, uint32(len(payload)))
	return append(f, payload...)
}

// nameIn returns the notification's name in a NOTIFY_COMPAT frame.
func nameIn(f []byte) string {
	if len(f) < headerSize+4 {
		return ""
	}
	n := uint64(binary.LittleEndian.Uint32(f[headerSize:]))
	if uint64(len(f)) < headerSize+4+n {
		return ""
	}
	return string(f[headerSize+4 : headerSize+4+n])
}

// transport is one instance of a node's transport: in memory, faulty, and
// tapped.
type transport struct {
	*sdktest.FaultyTransport
	w    *world
	l    *life
	name string
	rng  *rand.Rand // guarded by the world's lock
}

func (t *transport) Connect(ctx context.Context, target sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	p := &tap{t: t, h: h, target: target}
	ep, err := t.FaultyTransport.Connect(ctx, target, x, p)
	t.l.proc.Awake()
	return p.made(ep, err)
}

func (t *transport) Accept(ctx context.Context, target sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	t.l.proc.Awake()
	p := &tap{t: t, h: h, target: target}
	ep, answer, err := t.FaultyTransport.Accept(ctx, target, offer, p)
	t.l.proc.Awake()
	if ep, err = p.made(ep, err); err != nil {
		return nil, nil, err
	}
	return ep, answer, nil
}

// tap is an endpoint seen from both sides: it watches what its engine sends,
// keeps some of what comes in for later, and takes forgeries.
type tap struct {
	sdk.Endpoint
	t      *transport
	h      sdk.Handler
	target sdk.Target

	key uint64 // of what it is

	mu    sync.Mutex // held while the handler is called
	ended bool
	// What the peer showed of itself and of us.
	theirs, ours header
}

func (p *tap) made(ep sdk.Endpoint, err error) (sdk.Endpoint, error) {
	if err != nil {
		return nil, err
	}
	p.Endpoint = ep
	p.key = hash(p.t.l.String(), p.t.name, fmt.Sprint(p.target.Peer, p.target.Path, p.target.Generation))
	w := p.t.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.taps = append(w.taps, p)
	return p, nil
}

// Send checks what the engine puts on the wire.
func (p *tap) Send(frames []sdk.Frame, more bool) (int, error) {
	w := p.t.w
	for _, f := range frames {
		h, ok := parse(f.Data)
		if !ok {
			w.broken("", "%s sends a frame without a header", p.t.l)
			continue
		}
		switch h.kind {
		case typeNotify:
			name := nameIn(f.Data)
			w.add(name, "tx %s over %s/%s session %04x seq %d floor %d", p.t.l, p.t.name, p.target.Path, h.session&0xffff, h.seq, h.aack)
			if h.seq < h.aack || h.seq >= h.aack+window || h.seq == 0 {
				w.broken(name, "number %d with floor %d is outside the span", h.seq, h.aack)
			}
			fallthrough
		case typeCredit:
			if h.epoch != p.target.Peer.Epoch() || h.session == 0 {
				w.broken("", "%s sends to epoch %x session %x over an endpoint to %x", p.t.l, h.epoch, h.session, p.target.Peer.Epoch())
			}
		case typeAck, typeClose:
			if h.epoch != p.target.Local.Epoch() {
				w.broken("", "%s answers with the epoch %x", p.t.l, h.epoch)
			}
			if h.kind == typeClose {
				w.add("", "tx %s SESSION_CLOSE %04x over %s", p.t.l, h.session&0xffff, p.t.name)
			}
		default:
			w.broken("", "%s sends type %d", p.t.l, h.kind)
		}
	}
	return p.Endpoint.Send(frames, more)
}

func (p *tap) Completed(cs []sdk.Completion) {
	p.t.l.proc.Awake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.h.Completed(cs)
}

func (p *tap) Ended(err error) {
	p.t.l.proc.Awake()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.h.Ended(err)
	w := p.t.w
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, q := range w.taps {
		if q == p {
			w.taps[i] = w.taps[len(w.taps)-1]
			w.taps = w.taps[:len(w.taps)-1]
			break
		}
	}
}

func (p *tap) Received(frames [][]byte) {
	p.t.l.proc.Awake()
	p.mu.Lock()
	defer p.mu.Unlock()
	w := p.t.w
	kept := frames[:0:0]
	for _, f := range frames {
		h, _ := parse(f)
		switch h.kind {
		case typeNotify:
			p.theirs = h
			w.add(nameIn(f), "rx %s over %s/%s seq %d", p.t.l, p.t.name, p.target.Path, h.seq)
		case typeAck:
			p.ours = h
		}
		if !w.straggle(p, f) {
			kept = append(kept, f)
		}
	}
	if len(kept) > 0 {
		p.h.Received(kept)
	}
}

// inject hands the engine a frame as if the peer had sent it.
func (p *tap) inject(f []byte) {
	p.t.l.proc.Awake()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended {
		p.h.Received([][]byte{f})
	}
}

// straggle decides whether a frame that arrives is kept for later instead, or
// kept as a copy: it comes back when its session may be long over.
func (w *world) straggle(p *tap, f []byte) (held bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := p.t.rng
	if !w.faulty || r.Float64() >= w.p.straggle {
		return false
	}
	held = r.IntN(2) == 0
	after := time.Duration(r.Float64()*r.Float64()*2.5*float64(2*w.p.longest)) | 1
	pick := r.Uint64()
	to, from := p.t.l.n, p.target.Peer
	data := bytes.Clone(f)
	time.AfterFunc(after, func() {
		w.mu.Lock()
		q := w.pickLocked(pick, func(q *tap) bool { return q.t.l.n == to && q.target.Peer == from })
		if q == nil { // of another life, or another peer: hostile, then
			q = w.pickLocked(pick, func(q *tap) bool { return q.t.l.n == to })
		}
		if q != nil {
			w.fired["straggler"]++
			if after > 2*w.p.longest {
				w.fired["straggler past expiry"]++
			}
			if q.target.Peer != from {
				w.fired["straggler of another life"]++
			}
		}
		w.mu.Unlock()
		if q != nil {
			h, _ := parse(data)
			key := ""
			if h.kind == typeNotify {
				key = nameIn(data)
			}
			w.add(key, "rx %s straggler type %d session %04x seq %d after %v", q.t.l, h.kind, h.session&0xffff, h.seq, after)
			q.inject(data)
		}
	})
	return held
}

// pickLocked returns the endpoint that chance chooses of those that match
// accepts, or nil. In which order they were made does not matter.
func (w *world) pickLocked(chance uint64, match func(*tap) bool) *tap {
	var found *tap
	var best uint64
	for _, p := range w.taps {
		if match(p) {
			if x := p.key ^ chance; found == nil || x < best {
				found, best = p, x
			}
		}
	}
	return found
}

// forge makes a frame that an honest peer never sends and that must not count.
func (p *tap) forge(r *rand.Rand) (kind string, f []byte) {
	p.mu.Lock()
	theirs, ours := p.theirs, p.ours
	p.mu.Unlock()
	here, there := p.target.Local.Epoch(), p.target.Peer.Epoch()
	far := uint64(1)<<40 + r.Uint64N(1<<20)
	payload := binary.LittleEndian.AppendUint32(nil, uint32(len(forgedPrefix)))
	payload = append(payload, forgedPrefix...)
	payload = append(payload, 0, 0, 0, 0)
	notify := header{typeNotify, theirs.session, here, max(theirs.seq, 1), max(theirs.aack, 1)}
	room := make([]byte, 20)
	binary.LittleEndian.PutUint64(room, far)
	binary.LittleEndian.PutUint64(room[8:], math.MaxInt64)
	ack := header{typeAck, ours.session, there, far, far}
	switch r.IntN(10) {
	case 0:
		notify.session = r.Uint64() | 1
		return "forged session", notify.frame(payload)
	case 1:
		notify.epoch = r.Uint64()
		return "forged epoch", notify.frame(payload)
	case 2:
		kind = "forged floor"
		switch r.IntN(4) {
		case 0:
			notify.aack = 0
		case 1:
			notify.seq = notify.aack + window + r.Uint64N(9)
			kind = "forged number"
		case 2:
			notify.aack = notify.seq + 1 + r.Uint64N(9)
		default:
			notify.seq, notify.aack = math.MaxUint64, math.MaxUint64-r.Uint64N(9)
			kind = "forged number"
		}
		if notify.session == 0 {
			notify.session = 1
		}
		return kind, notify.frame(payload)
	case 3:
		return "forged floor of a request", header{typeCredit, theirs.session, here, 0, math.MaxUint64 * r.Uint64N(2)}.frame(nil)
	case 4:
		return "ack of numbers never sent", ack.frame(room)
	case 5:
		ack.aack = 3
		binary.LittleEndian.PutUint16(room[16:], 1)
		room = binary.LittleEndian.AppendUint16(room, 60000)
		room = binary.LittleEndian.AppendUint16(room, 5000)
		if ack.aack > ours.aack {
			ack.aack = ours.aack
		}
		return "ack of ranges never sent", ack.frame(room)
	case 6:
		if r.IntN(2) == 0 {
			ack.session++
		} else {
			ack.epoch++
		}
		ack.aack = 2
		return "ack of another session", ack.frame(room)
	case 7:
		c := header{typeClose, ours.session, there, 0, 0}
		switch r.IntN(3) {
		case 0:
			c.session++
		case 1:
			c.epoch++
		default:
			c.seq = 1
		}
		return "close of another session", c.frame(nil)
	case 8:
		f := notify.frame(payload)
		f[4+r.IntN(4)] ^= 0xf0
		return "malformed", f[:len(f)-r.IntN(3)]
	default:
		return "truncated", notify.frame(payload)[:4+r.IntN(headerSize-4)]
	}
}
