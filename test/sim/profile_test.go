package sim

import (
	"math/rand/v2"
	"time"

	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// profile is what a seed chooses of a run before it begins.
type profile struct {
	nodes                int
	twoNames, exclusive  bool
	queue, queueBytes    int
	outbox               int
	slotWait, ackTimeout int // ms
	deadline             int // ms
	longest              time.Duration
	inflight             int
	stall                time.Duration
	gap                  time.Duration // between two notifications of a node
	burst                int
	last                 time.Duration // the time of faults
	pause                time.Duration // between two faults
	base                 sdktest.Faults
	straggle             float64
	weights              []int         // of faults
	maxAge               time.Duration // of a mark
	calm                 bool          // nothing but freezes happens
	deaths               bool          // and the death of endpoints
}

func newProfile(seed uint64) profile {
	r := rand.New(rand.NewPCG(seed, 0))
	of := func(vs ...int) int { return vs[r.IntN(len(vs))] }
	p := profile{
		nodes: of(2, 2, 3, 3, 4), twoNames: r.IntN(2) == 0, exclusive: r.IntN(2) == 0,
		queue: of(1, 4, 16, 64, 1024), queueBytes: of(maxPayload, 16<<10, 1<<20),
		outbox: of(maxPayload, 16<<10, 64<<10, 1<<20), slotWait: of(50, 200, 1000), ackTimeout: of(200, 500, 1000),
		deadline: of(1500, 4000, 8000), longest: time.Duration(of(8, 10, 15)) * time.Second,
		inflight: of(4, 32, 1024), stall: time.Duration(of(0, 1, 3)) * time.Second,
		gap: time.Duration(of(100, 200, 400)) * time.Millisecond, burst: of(1, 10, 60),
		last: time.Duration(of(5, 8, 12, 12, 40)) * time.Second, pause: time.Duration(of(150, 400, 1000)) * time.Millisecond,
		straggle: []float64{0, 0.005, 0.03}[r.IntN(3)],
	}
	if p.last > 20*time.Second { // long enough for sessions to expire, so less traffic
		p.gap *= 3
		p.pause *= 3
	}
	chance := func() float64 { return []float64{0, 0, 0.01, 0.1}[r.IntN(4)] }
	frames := func() sdktest.FrameFaults {
		return sdktest.FrameFaults{Drop: chance(), Double: chance(), Delay: chance() / 2, Reorder: chance()}
	}
	p.base = sdktest.Faults{
		Send: frames(), Receive: frames(), DropIsUnknown: r.IntN(3) == 0, NotPosted: chance() / 4, Unknown: chance() / 4,
		MaxDelay: time.Duration(of(5, 50, 800)) * time.Millisecond,
	}
	for range faults {
		p.weights = append(p.weights, of(0, 1, 1, 4))
	}
	p.maxAge = time.Duration(of(4, 10, 600)) * time.Second
	if p.calm = r.IntN(5) == 0; p.calm {
		p.base, p.straggle = sdktest.Faults{}, 0
		p.queue, p.queueBytes, p.outbox, p.inflight, p.burst = 1024, 1<<20, 1<<20, 1024, min(p.burst, 10)
		p.pause = min(p.pause, 600*time.Millisecond)
		p.deaths = r.IntN(2) == 0
		for i, k := range faults {
			switch {
			case k.name == "freeze" || k.name == "host freeze":
				p.weights[i] = 1
			case k.name == "endpoint death" && p.deaths:
				p.weights[i] = 6
			default:
				p.weights[i] = 0
			}
		}
	}
	return p
}
