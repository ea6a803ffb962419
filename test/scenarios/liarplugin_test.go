//go:build linux

package scenarios

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
	"github.com/hawser-transport/hawser/sdk"
)

// ledgerVariable names the file in which a liar keeps account: a line a lie.
const ledgerVariable = "HAWSER_SCENARIO_LEDGER"

// serveLiar is the main of a plugin that carries well and lies about it.
func serveLiar() {
	f, err := os.OpenFile(os.Getenv(ledgerVariable), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	tcp := tcptransport.New()
	sdk.Serve(&liar{Transport: tcp, Notifier: tcp.(sdk.Notifier), Prober: tcp.(sdk.Prober), Drainer: tcp.(sdk.Drainer), ledger: f})
}

// liar wraps tcp.
type liar struct {
	sdk.Transport
	sdk.Notifier
	sdk.Prober
	sdk.Drainer
	ledger *os.File

	mu   sync.Mutex
	ends int // that were made up
}

func (l *liar) note(lie string) { fmt.Fprintln(l.ledger, lie) }

// Configure prints what no host should choke on.
func (l *liar) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	fmt.Println("1|1|tcp|127.0.0.1:22|grpc|")
	_, _ = os.Stdout.Write([]byte("\x00\xff\x1b[2J\xf0\x9f"))
	fmt.Fprintln(os.Stderr, `{"@level":"panic","@message":[1,{}],"time":-1`)
	long := bytes.Repeat([]byte("x"), 1<<20)
	for range 3 {
		_, _ = os.Stderr.Write(append(long, '\n'))
	}
	l.note("rubbish printed")
	return l.Transport.Configure(ctx, cfg)
}

func (l *liar) Connect(ctx context.Context, t sdk.Target, x sdk.Exchange, h sdk.Handler) (sdk.Endpoint, error) {
	return l.Notifier.Connect(ctx, t, x, &lyingHandler{l: l, h: h, ends: connectorsEnds})
}

func (l *liar) Accept(ctx context.Context, t sdk.Target, offer []byte, h sdk.Handler) (sdk.Endpoint, []byte, error) {
	return l.Notifier.Accept(ctx, t, offer, &lyingHandler{l: l, h: h, ends: acceptorsEnds})
}

// lyingHandler stands between tcp and the host. None of its lies is plausible:
// those the host has to believe.
type lyingHandler struct {
	l     *liar
	h     sdk.Handler
	ends  int // how many may be made up
	taken int
	ended bool // as the host was told
}

// Completed tells everything twice, and outcomes of frames that do not exist.
func (h *lyingHandler) Completed(cs []sdk.Completion) {
	again := append([]sdk.Completion(nil), cs...)
	h.h.Completed(cs)
	for i := range again {
		again[i].Outcome = []sdk.Outcome{sdk.Done, sdk.NotPosted, sdk.Unknown}[i%3]
	}
	h.h.Completed(again)
	h.l.note("completed twice")
	h.h.Completed([]sdk.Completion{
		{ID: 0, Outcome: sdk.Done}, {ID: 1<<40 + rand.Uint64N(1<<40), Outcome: sdk.NotPosted},
		{ID: math.MaxUint64, Outcome: sdk.Unknown, Code: 200}, {ID: 1 << 62, Outcome: 77},
	})
	h.l.note("unknown completed")
	h.count(len(cs))
}

// endAfter is after how many frames and outcomes an endpoint's end is made up;
// the others are how often, so that the other lies have their turn. After the
// acceptor's lie the connector's frames vanish, until it makes an endpoint
// anew: it lies more often.
const endAfter, connectorsEnds, acceptorsEnds = 300, 3, 1

// count makes up the end of an endpoint that is well and goes on carrying.
func (h *lyingHandler) count(n int) {
	if h.taken += n; h.ended || h.taken < endAfter {
		return
	}
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	if h.l.ends == h.ends {
		return
	}
	h.l.ends++
	h.ended = true
	h.l.note("end made up")
	h.h.Ended(sdk.Errorf(sdk.PeerRestarted, "the peer has been eaten"))
}

// Received adds frames that nobody sent.
func (h *lyingHandler) Received(frames [][]byte) {
	made := h.makeUp(frames)
	h.h.Received(frames)
	h.h.Received(made)
	h.count(len(frames))
}

func (h *lyingHandler) Ended(err error) { h.h.Ended(err) }

// The layout of a typed frame: docs/protocol.md.
const (
	frameMagic                 = 0x434B434D
	frameHeader                = 44
	notifyType, ackType        = 10, 9
	sessionAt, epochAt, seqAt  = 8, 16, 24
	typeAt, flagsAt, versionAt = 5, 6, 4
)

// makeUp makes frames that nobody sent: noise, copies of what came, and copies
// with forged stamps.
func (h *lyingHandler) makeUp(frames [][]byte) (made [][]byte) {
	noise := make([]byte, rand.IntN(300))
	for i := range noise {
		noise[i] = byte(rand.Uint32()) | 1 // as a raw frame it is longer than it is
	}
	typed := binary.LittleEndian.AppendUint32(nil, frameMagic)
	made = append(made, noise, append(typed, noise...), []byte{})
	h.l.note("noise received")
	for _, f := range frames {
		if len(f) < frameHeader || binary.LittleEndian.Uint32(f) != frameMagic {
			continue
		}
		forge := func(change func(b []byte)) {
			b := bytes.Clone(f)
			change(b)
			made = append(made, b)
		}
		forge(func(b []byte) { binary.LittleEndian.PutUint64(b[sessionAt:], rand.Uint64()|1) })
		forge(func(b []byte) { binary.LittleEndian.PutUint64(b[epochAt:], rand.Uint64()|1) })
		forge(func(b []byte) { b[versionAt] = 9 })
		forge(func(b []byte) { b[flagsAt+1] = 0x80 })
		made = append(made, bytes.Clone(f[:len(f)-1]))
		h.l.note("stamp forged")
		if f[typeAt] != notifyType {
			continue
		}
		made = append(made, bytes.Clone(f))
		h.l.note("received twice")
		forge(func(b []byte) {
			binary.LittleEndian.PutUint64(b[seqAt:], binary.LittleEndian.Uint64(b[seqAt:])+1<<20)
		})
		forge(func(b []byte) { b[typeAt] = ackType; binary.LittleEndian.PutUint64(b[sessionAt:], rand.Uint64()|1) })
	}
	return made
}
