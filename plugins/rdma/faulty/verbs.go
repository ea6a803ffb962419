package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// provider is a provider of verbs whose queue pairs and pollers a book knows.
// It opens when it is used first.
type provider struct{ open func() (*opened, error) }

type opened struct {
	verbs.Provider
	book *book
}

// Devices implements [verbs.Provider].
func (p *provider) Devices() ([]verbs.Info, error) {
	o, err := p.open()
	if err != nil {
		return nil, err
	}
	return o.Provider.Devices()
}

// Open implements [verbs.Provider].
func (p *provider) Open(name string) (verbs.Device, error) {
	o, err := p.open()
	if err != nil {
		return nil, err
	}
	d, err := o.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return &device{d, o.book}, nil
}

// book knows the queue pairs that exist, and whether pollers are held.
type book struct {
	mu   sync.Mutex
	qps  map[*queuePair]struct{}
	held bool
	// asleep are the channels that something polls, and whether it is held.
	asleep map[*channel]bool
	// changed is closed and replaced whenever one of these two changes.
	changed chan struct{}
	// next is called once, when the next message or op has been posted, or nil.
	next func()
}

func newBook() *book {
	return &book{qps: map[*queuePair]struct{}{}, asleep: map[*channel]bool{}, changed: make(chan struct{})}
}

func (b *book) tellLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// hold holds every poller, and returns when all of them are.
func (b *book) hold() error {
	b.mu.Lock()
	b.held = true
	b.tellLocked()
	b.mu.Unlock()
	for late := time.After(answerIn); ; {
		b.mu.Lock()
		all, changed := true, b.changed
		for _, asleep := range b.asleep {
			all = all && asleep
		}
		b.mu.Unlock()
		if all {
			return nil
		}
		select {
		case <-changed:
		case <-late:
			return errors.New("a poller does not come to rest: too much arrives")
		}
	}
}

func (b *book) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = false
	for c := range b.asleep {
		b.asleep[c] = false
	}
	b.tellLocked()
}

// rest says whether the channel's poller is held, and what is closed when that
// changes.
func (b *book) rest(c *channel) (held bool, changed <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was, known := b.asleep[c]; was != b.held || !known {
		b.asleep[c] = b.held
		b.tellLocked()
	}
	return b.held, b.changed
}

func (b *book) forget(c *channel) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.asleep, c)
	b.tellLocked()
}

// connected are the queue pairs that are in RTS, in the order of their numbers.
func (b *book) connected() []*queuePair {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []*queuePair
	for q := range b.qps {
		if state, err := q.State(); err == nil && state == verbs.RTS {
			list = append(list, q)
		}
	}
	slices.SortFunc(list, func(a, b *queuePair) int { return int(a.Num()) - int(b.Num()) })
	return list
}

// move moves every connected queue pair, and says which those were.
func (b *book) move(to func(verbs.QP) error) (string, error) {
	var names string
	list := b.connected()
	if len(list) == 0 {
		return "", errors.New("no queue pair is connected")
	}
	for _, q := range list {
		if err := to(q.QP); err != nil {
			return names, fmt.Errorf("queue pair %d of %s: %w", q.Num(), q.device, err)
		}
		names += fmt.Sprintf("%s %d\n", q.device, q.Num())
	}
	return names, nil
}

// moveBusy is move as soon as a message or an op is posted: it is on its way then.
func (b *book) moveBusy(to func(verbs.QP) error) (names string, err error) {
	done := make(chan struct{})
	b.mu.Lock()
	b.next = func() {
		defer close(done)
		names, err = b.move(to)
	}
	b.mu.Unlock()
	select {
	case <-done:
		return names, err
	case <-time.After(answerIn):
		b.mu.Lock()
		defer b.mu.Unlock()
		b.next = nil
		return "", errors.New("nothing is being sent")
	}
}

// posted follows every message and every op.
func (b *book) posted() {
	b.mu.Lock()
	next := b.next
	b.next = nil
	b.mu.Unlock()
	if next != nil {
		next()
	}
}

type device struct {
	verbs.Device
	book *book
}

func (d *device) AllocPD() (verbs.PD, error) {
	p, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &domain{p, d}, nil
}

func (d *device) CreateCQ(entries int, ch verbs.Channel) (verbs.CQ, error) {
	if c, ok := ch.(*channel); ok {
		ch = c.Channel
	}
	return d.Device.CreateCQ(entries, ch)
}

func (d *device) CreateChannel() (verbs.Channel, error) {
	c, err := d.Device.CreateChannel()
	if err != nil {
		return nil, err
	}
	return &channel{Channel: c, book: d.book, over: make(chan struct{}), heard: make(chan error, 1)}, nil
}

// channel holds whoever waits on it: its completions wait with the device. What
// anybody else polls meanwhile, such as an endpoint that ends, is not held.
type channel struct {
	verbs.Channel
	book *book
	once sync.Once
	over chan struct{}
	// One goroutine waits at a time; waiting says whether one does.
	waiting bool
	heard   chan error
	tasks   sync.WaitGroup
}

// Wait implements [verbs.Channel]. One goroutine calls it.
func (c *channel) Wait() error {
	held, changed := c.book.rest(c)
	for ; held; held, changed = c.book.rest(c) {
		select {
		case <-changed:
		case <-c.over:
			return verbs.ErrClosed
		}
	}
	if !c.waiting {
		c.waiting = true
		c.tasks.Go(func() { c.heard <- c.Channel.Wait() })
	}
	select {
	case err := <-c.heard:
		c.waiting = false
		return err
	case <-changed:
		return nil // and poll, before it is held
	}
}

func (c *channel) Interrupt() {
	c.once.Do(func() { close(c.over) })
	c.Channel.Interrupt()
}

func (c *channel) Close() error {
	c.tasks.Wait()
	c.book.forget(c)
	return c.Channel.Close()
}

type domain struct {
	verbs.PD
	device *device
}

func (p *domain) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	q, err := p.PD.CreateQP(init)
	if err != nil {
		return nil, err
	}
	w := &queuePair{q, p.device.Name(), p.device.book}
	w.book.mu.Lock()
	w.book.qps[w] = struct{}{}
	w.book.mu.Unlock()
	return w, nil
}

type queuePair struct {
	verbs.QP
	device string
	book   *book
}

func (q *queuePair) Post(wrs []verbs.SendWR) (int, error) {
	n, err := q.QP.Post(wrs)
	if n > 0 && wrs[0].Op != verbs.SendImm {
		q.book.posted()
	}
	return n, err
}

func (q *queuePair) Close() error {
	b := q.book
	b.mu.Lock()
	delete(b.qps, q) // nobody moves what is being destroyed
	b.mu.Unlock()
	err := q.QP.Close() // which may take long, and must not stop the poller
	if err != nil {
		b.mu.Lock()
		b.qps[q] = struct{}{}
		b.mu.Unlock()
	}
	return err
}
