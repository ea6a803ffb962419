package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// kind is a kind of fault. It does its harm at once and undoes it after a time
// that it is given; it reports false if there was nothing to harm.
type kind struct {
	name string
	do   func(w *world, r *rand.Rand, d time.Duration) bool
}

// faults are all kinds. Those that block a node's life run on their own.
var faults = []kind{
	{"cut one way", func(w *world, r *rand.Rand, d time.Duration) bool {
		a, b := w.pair(r)
		name, path := w.way(r)
		w.add("", "fault: %s>%s cut over %s/%s for %v", a.address, b.address, name, path, d)
		w.fabrics[name].Cut(a.address, b.address, path)
		w.later(d, func() { w.fabrics[name].Heal(a.address, b.address, path) })
		return true
	}},
	{"cut both ways", func(w *world, r *rand.Rand, d time.Duration) bool {
		a, b := w.pair(r)
		name, path := w.way(r)
		w.add("", "fault: %s<>%s cut over %s/%s for %v", a.address, b.address, name, path, d)
		w.fabrics[name].CutBoth(a.address, b.address, path)
		w.later(d, func() { w.fabrics[name].HealBoth(a.address, b.address, path) })
		return true
	}},
	{"slow path", func(w *world, r *rand.Rand, d time.Duration) bool {
		a, b := w.pair(r)
		name, path := w.way(r)
		by := time.Duration(r.Int64N(int64(800 * time.Millisecond)))
		w.add("", "fault: %s>%s takes %v over %s/%s for %v", a.address, b.address, by, name, path, d)
		w.fabrics[name].Delay(a.address, b.address, path, by|1)
		w.later(d, w.latencies)
		return true
	}},
	{"endpoint death", func(w *world, r *rand.Rand, _ time.Duration) bool {
		a, b := w.pair(r)
		name, path := w.way(r)
		n := w.fabrics[name].End(a.address, b.address, path)
		w.add("", "fault: %d endpoints %s-%s end over %s/%s", n, a.address, b.address, name, path)
		return n > 0
	}},
	{"plugin death", func(w *world, r *rand.Rand, _ time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		name, _ := w.way(r)
		ts := w.instances(n, name)
		if len(ts) == 0 {
			return false
		}
		w.add("", "fault: %s's %s dies", n.address, name)
		w.fabrics[name].Kill(n.address)
		for _, t := range ts {
			t.Crash()
		}
		return true
	}},
	{"plugin hangs", func(w *world, r *rand.Rand, d time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		name, _ := w.way(r)
		ts := w.instances(n, name)
		if len(ts) == 0 {
			return false
		}
		w.add("", "fault: %s's %s hangs for %v", n.address, name, d)
		for _, t := range ts {
			t.Hang()
			w.later(d, t.Resume)
		}
		return true
	}},
	{"bad frames", func(w *world, r *rand.Rand, d time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		name, _ := w.way(r)
		f := sdktest.FrameFaults{Drop: r.Float64() / 2, Double: r.Float64() / 2, Delay: r.Float64() / 10, Reorder: r.Float64() / 2}
		all := sdktest.Faults{Send: f, Receive: f, DropIsUnknown: r.IntN(2) == 0, NotPosted: r.Float64() / 8, Unknown: r.Float64() / 8, MaxDelay: 300 * time.Millisecond}
		ts := w.instances(n, name)
		w.add("", "fault: %s's %s is bad for %v", n.address, name, d)
		for _, t := range ts {
			t.Set(all)
			w.later(d, func() { w.calm(t) })
		}
		return len(ts) > 0
	}},
	{"freeze", func(w *world, r *rand.Rand, _ time.Duration) bool { return w.freeze(r, true) }},
	{"host freeze", func(w *world, r *rand.Rand, _ time.Duration) bool { return w.freeze(r, false) }},
	{"plugins freeze", func(w *world, r *rand.Rand, d time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		w.add("", "fault: %s's plugins freeze for %v", n.address, d)
		for _, f := range w.fabrics {
			f.Freeze(n.address)
		}
		w.later(d, func() {
			for _, f := range w.fabrics {
				f.Thaw(n.address)
			}
		})
		return true
	}},
	{"mute control", func(w *world, r *rand.Rand, d time.Duration) bool {
		n, back := w.nodes[r.IntN(len(w.nodes))], w.nodes
		w.add("", "fault: %s's control plane is mute for %v", n.address, d)
		for _, m := range back {
			w.net.Silence(n.address, m.address, true)
			w.net.Silence(m.address, n.address, true)
		}
		w.later(d, func() {
			for _, m := range back {
				w.net.Silence(n.address, m.address, false)
				w.net.Silence(m.address, n.address, false)
			}
		})
		return true
	}},
	{"silence", func(w *world, r *rand.Rand, d time.Duration) bool {
		a, b := w.pair(r)
		w.add("", "fault: control %s>%s silent for %v", a.address, b.address, d)
		w.net.Silence(a.address, b.address, true)
		w.later(d, func() { w.net.Silence(a.address, b.address, false) })
		return true
	}},
	{"refuse", func(w *world, r *rand.Rand, d time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		w.add("", "fault: control to %s refused for %v", n.address, d/4)
		w.net.Refuse(n.address, true)
		w.later(d/4, func() { w.net.Refuse(n.address, false) })
		return true
	}},
	{"slow control", func(w *world, r *rand.Rand, d time.Duration) bool {
		a, b := w.pair(r)
		by := time.Duration(r.Int64N(int64(3 * time.Second)))
		w.add("", "fault: control %s>%s takes %v for %v", a.address, b.address, by, d)
		w.net.Delay(a.address, b.address, by|1)
		w.later(d, w.latencies)
		return true
	}},
	{"restart", func(w *world, r *rand.Rand, d time.Duration) bool {
		drain := time.Duration(r.Float64() * r.Float64() * 3 * float64(time.Second))
		return w.relive(r, d/4, false, func(l *life) { l.close(drain) })
	}},
	{"crash", func(w *world, r *rand.Rand, d time.Duration) bool {
		if r.IntN(2) == 0 {
			d = 0
		}
		return w.relive(r, d/4, true, (*life).crash)
	}},
	{"stay away", func(w *world, r *rand.Rand, d time.Duration) bool {
		if r.IntN(2) == 0 {
			return w.relive(r, 2*d, true, (*life).crash)
		}
		return w.relive(r, 2*d, false, func(l *life) { l.close(0) })
	}},
	{"absent reader", func(w *world, r *rand.Rand, d time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		w.add("", "fault: %s's reader is absent for %v", n.address, d)
		w.with(func() { n.absent = true })
		w.later(d, func() { w.with(func() { n.absent = false }) })
		return true
	}},
	{"slow reader", func(w *world, r *rand.Rand, d time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		w.add("", "fault: %s's reader is slow for %v", n.address, d)
		w.with(func() { n.slow = time.Duration(1 + r.Int64N(int64(400*time.Millisecond))) })
		w.later(d, func() { w.with(func() { n.slow = 0 }) })
		return true
	}},
	{"idle sender", func(w *world, r *rand.Rand, _ time.Duration) bool {
		n := w.nodes[r.IntN(len(w.nodes))]
		d := time.Duration((0.9 + 1.8*r.Float64()) * float64(w.p.longest))
		w.add("", "fault: %s sends nothing for %v", n.address, d)
		w.with(func() { n.idle = true })
		w.later(d, func() { w.with(func() { n.idle = false }) })
		return true
	}},
	{"reload", func(w *world, r *rand.Rand, d time.Duration) bool {
		l := w.alive(r)
		if l == nil {
			return false
		}
		cfg := l.cfg
		cfg.Transports = slices.Clone(cfg.Transports)
		r.Shuffle(len(cfg.Transports), func(i, j int) {
			cfg.Transports[i], cfg.Transports[j] = cfg.Transports[j], cfg.Transports[i]
		})
		if r.IntN(2) == 0 {
			cfg.Transports = slices.DeleteFunc(cfg.Transports, func(t engine.TransportConfig) bool { return t.Name == transportNames[r.IntN(2)] })
		}
		var names []string
		for _, t := range cfg.Transports {
			names = append(names, t.Name)
		}
		go func() {
			w.add("", "fault: %s reloads to %v", l, names)
			err := l.e.Reload(context.Background(), cfg)
			w.add("", "%s reloaded: %v", l, err)
		}()
		return true
	}},
	{"replacement", func(w *world, r *rand.Rand, d time.Duration) bool {
		l := w.alive(r)
		if l == nil {
			return false
		}
		name, _ := w.way(r)
		go func() {
			w.add("", "fault: %s replaces its %s", l, name)
			err := l.e.RestartTransport(context.Background(), name)
			w.add("", "%s replaced its %s: %v", l, name, err)
		}()
		return true
	}},
	{"hostile frames", func(w *world, r *rand.Rand, _ time.Duration) bool {
		done := false
		for range 1 + r.IntN(20) {
			w.mu.Lock()
			p := w.pickLocked(r.Uint64(), func(*tap) bool { return true })
			w.mu.Unlock()
			if p == nil {
				break
			}
			what, f := p.forge(r)
			w.add("", "fault: %s gets a %s over %s", p.t.l, what, p.t.name)
			w.count(what)
			time.AfterFunc(instant, func() { p.inject(f) }) // its process may be stopped
			done = true
		}
		return done
	}},
}

// way picks a transport and one of its paths, or all of them.
func (w *world) way(r *rand.Rand) (transport, path string) {
	name := transportNames[min(r.IntN(6), 5)%3]
	if r.IntN(3) == 0 {
		name = "fast"
	}
	if name == "fast" && r.IntN(2) == 0 {
		return name, []string{"p0", "p1"}[r.IntN(2)]
	}
	return name, ""
}

func (w *world) pair(r *rand.Rand) (a, b *node) {
	i := r.IntN(len(w.nodes))
	j := (i + 1 + r.IntN(len(w.nodes)-1)) % len(w.nodes)
	return w.nodes[i], w.nodes[j]
}

func (w *world) with(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// later undoes something, unless everything was healed before.
func (w *world) later(d time.Duration, undo func()) {
	time.AfterFunc(d, undo)
}

// instances are a node's instances of a transport that are in use.
func (w *world) instances(n *node, name string) []*transport {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*transport
	if n.cur != nil {
		for _, t := range n.cur.instances {
			if t.name == name && t.Err() == nil {
				list = append(list, t)
			}
		}
	}
	return list
}

// calm takes back a transport's bad frames.
func (w *world) calm(t *transport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.faulty {
		t.Set(w.p.base)
	} else {
		t.Set(sdktest.Faults{})
	}
}

func (w *world) alive(r *rand.Rand) *life {
	n := w.nodes[r.IntN(len(w.nodes))]
	w.mu.Lock()
	defer w.mu.Unlock()
	if n.busy || n.cur == nil || n.cur.stoppedLocked() {
		return nil
	}
	return n.cur
}

// relive ends a node's life in some way and begins the next after a while. Only
// a kill ends one that is stopped.
func (w *world) relive(r *rand.Rand, away time.Duration, kill bool, end func(*life)) bool {
	n := w.nodes[r.IntN(len(w.nodes))]
	w.mu.Lock()
	l := n.cur
	if n.busy || l == nil || l.stoppedLocked() && !kill {
		w.mu.Unlock()
		return false
	}
	n.busy = true
	w.mu.Unlock()
	go func() {
		end(l)
		time.Sleep(away)
		n.open()
		w.with(func() { n.busy = false })
	}()
	return true
}

// harm does faults until the time of faults is over, then heals everything.
func (w *world) harm(r *rand.Rand) {
	sum := 0
	for _, v := range w.p.weights {
		sum += v
	}
	for sum > 0 {
		time.Sleep(time.Duration(r.ExpFloat64()*float64(w.p.pause)) | 1)
		if time.Since(w.start) >= w.p.last {
			break
		}
		x := r.IntN(sum)
		i := 0
		for ; x >= w.p.weights[i]; i++ {
			x -= w.p.weights[i]
		}
		d := time.Duration((0.02+r.Float64()*r.Float64())*8*float64(time.Second)) | 1
		// Each has chance of its own, so that what it finds to harm does not
		// change what comes later.
		w.drawn = append(w.drawn, fmt.Sprintf("%v %s %v", time.Since(w.start), faults[i].name, d))
		if faults[i].do(w, w.rng(hash("fault", fmt.Sprint(len(w.drawn)))), d) {
			w.count(faults[i].name)
		}
	}
	time.Sleep(time.Until(w.start.Add(w.p.last)))
	w.heal()
}

// heal undoes every fault and gives every node a life.
func (w *world) heal() {
	w.add("", "everything is healed")
	w.with(func() { w.faulty = false })
	for _, f := range w.fabrics {
		f.HealBoth("", "", "")
		f.Thaw("")
	}
	for _, l := range w.lives() {
		w.thaw(l)
	}
	w.latencies()
	for _, n := range w.nodes {
		w.net.Refuse(n.address, false)
		for _, m := range w.nodes {
			w.net.Silence(n.address, m.address, false)
		}
		w.with(func() { n.absent, n.slow, n.idle = false, 0, false })
		for n.living() == nil {
			time.Sleep(10 * time.Millisecond)
			w.mu.Lock()
			lost := !n.busy && n.cur == nil
			w.mu.Unlock()
			if lost { // it could not open
				n.open()
			}
		}
		for _, name := range transportNames {
			for _, t := range w.instances(n, name) {
				t.Resume()
				t.Set(sdktest.Faults{})
			}
		}
		// Whatever was reloaded is as it was.
		l := n.living()
		if err := l.e.Reload(context.Background(), l.cfg); err != nil {
			w.add("", "%s: the last reload: %v", l, err)
		}
	}
}

func (n *node) living() *life {
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	return n.cur
}
