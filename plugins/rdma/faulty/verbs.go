package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// provider is a provider of verbs whose queue pairs a book knows. It opens when
// it is used first.
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

// book knows the queue pairs that exist, and what becomes of completions.
type book struct {
	mu   sync.Mutex
	qps  map[*queuePair]struct{}
	mode mode
	// changed is closed and replaced with the mode.
	changed chan struct{}
	// kept counts the completions of messages that are being kept.
	kept int
}

// mode is what becomes of completions.
type mode uint8

const (
	// passing: they reach the transport.
	passing mode = iota
	// holding: they stay with the device.
	holding
	// keeping: they are taken from the device, and reach the transport later.
	keeping
)

func newBook() *book {
	return &book{qps: map[*queuePair]struct{}{}, changed: make(chan struct{})}
}

func (b *book) set(m mode) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mode = m
	close(b.changed)
	b.changed = make(chan struct{})
}

// now is the mode, and a channel that is closed when it changes.
func (b *book) now() (mode, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.mode, b.changed
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
	c, err := d.Device.CreateCQ(entries, ch)
	if err != nil {
		return nil, err
	}
	return &completions{CQ: c, book: d.book}, nil
}

func (d *device) CreateChannel() (verbs.Channel, error) {
	c, err := d.Device.CreateChannel()
	if err != nil {
		return nil, err
	}
	return &channel{Channel: c, book: d.book, over: make(chan struct{}), heard: make(chan error, 1)}, nil
}

// channel also tells when the mode changes.
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
	m, changed := c.book.now()
	if m == holding {
		select {
		case <-changed:
			return nil // and poll
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
		return nil
	}
}

func (c *channel) Interrupt() {
	c.once.Do(func() { close(c.over) })
	c.Channel.Interrupt()
}

func (c *channel) Close() error {
	c.tasks.Wait()
	return c.Channel.Close()
}

// completions is polled by one goroutine at a time.
type completions struct {
	verbs.CQ
	book *book
	kept []verbs.WC
}

// Poll implements [verbs.CQ].
func (c *completions) Poll(wcs []verbs.WC) (int, error) {
	switch m, _ := c.book.now(); m {
	case holding:
		return 0, nil
	case keeping:
		n, err := c.CQ.Poll(wcs)
		c.keep(wcs[:n])
		return 0, err
	}
	if len(c.kept) > 0 {
		n := copy(wcs, c.kept)
		c.kept = c.kept[n:]
		return n, nil
	}
	return c.CQ.Poll(wcs)
}

func (c *completions) keep(wcs []verbs.WC) {
	c.kept = append(c.kept, wcs...)
	c.book.mu.Lock()
	defer c.book.mu.Unlock()
	for _, wc := range wcs {
		if wc.Recv && wc.Status == verbs.Success && !wc.HasImm {
			c.book.kept++
		}
	}
}

type domain struct {
	verbs.PD
	device *device
}

func (p *domain) CreateQP(init verbs.QPInit) (verbs.QP, error) {
	init.SendCQ, init.RecvCQ = bare(init.SendCQ), bare(init.RecvCQ)
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

// bare is what the device knows a completion queue by.
func bare(c verbs.CQ) verbs.CQ {
	if c, ok := c.(*completions); ok {
		return c.CQ
	}
	return c
}

type queuePair struct {
	verbs.QP
	device string
	book   *book
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
