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

// book knows the queue pairs that exist, and whether completions are held back.
type book struct {
	mu      sync.Mutex
	qps     map[*queuePair]struct{}
	held    bool
	release chan struct{} // closed when they are not
}

func newBook() *book {
	b := &book{qps: map[*queuePair]struct{}{}, release: make(chan struct{})}
	close(b.release)
	return b
}

// hold keeps completions back from Poll, or lets them through again.
func (b *book) hold(on bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if on && !b.held {
		b.release = make(chan struct{})
	} else if !on && b.held {
		close(b.release)
	}
	b.held = on
}

func (b *book) isHeld() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held
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
	return &completions{c, d.book}, nil
}

func (d *device) CreateChannel() (verbs.Channel, error) {
	c, err := d.Device.CreateChannel()
	if err != nil {
		return nil, err
	}
	return &channel{Channel: c, book: d.book, over: make(chan struct{})}, nil
}

// channel tells of completions once they are not held back.
type channel struct {
	verbs.Channel
	book *book
	once sync.Once
	over chan struct{}
}

func (c *channel) Wait() error {
	err := c.Channel.Wait()
	c.book.mu.Lock()
	release := c.book.release
	c.book.mu.Unlock()
	select {
	case <-release:
	case <-c.over:
	}
	return err
}

func (c *channel) Interrupt() {
	c.once.Do(func() { close(c.over) })
	c.Channel.Interrupt()
}

type completions struct {
	verbs.CQ
	book *book
}

func (c *completions) Poll(wcs []verbs.WC) (int, error) {
	if c.book.isHeld() {
		return 0, nil
	}
	return c.CQ.Poll(wcs)
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
	q.book.mu.Lock()
	defer q.book.mu.Unlock() // nobody moves what is being destroyed
	err := q.QP.Close()
	if err == nil {
		delete(q.book.qps, q)
	}
	return err
}
