package simverbs

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"sort"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// command is what [Controller] asks of a process.
type command struct {
	Do     string
	Device string     `json:",omitempty"` // empty: all
	QP     uint32     `json:",omitempty"` // zero: all
	On     bool       `json:",omitempty"`
	Inject *Injection `json:",omitempty"`
}

const refreshCommand = "refresh"

type reply struct {
	Error    string `json:",omitempty"`
	QPs      []QPInfo
	Accounts Accounts
}

// QPInfo is what is known of a queue pair from outside.
type QPInfo struct {
	QPName
	State verbs.QPState
	Port  int
	// Posted counts sends that have not completed, Waiting completions that
	// were not polled.
	Posted, Waiting int
}

// serveCommands answers one command after the other.
func (p *Provider) serveCommands(r *bufio.Reader, conn net.Conn) {
	in, out := json.NewDecoder(r), json.NewEncoder(conn)
	for {
		var c command
		if in.Decode(&c) != nil {
			return
		}
		var a reply
		if err := p.obey(c, &a); err != nil {
			a.Error = err.Error()
		}
		if out.Encode(a) != nil {
			return
		}
	}
}

func (p *Provider) obey(c command, a *reply) error {
	if c.Do == "accounts" {
		a.Accounts = p.Accounts()
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c.Do {
	case refreshCommand:
		return p.refresh()
	case "inject":
		p.injected = append(p.injected, c.Inject)
		return nil
	case "starve", "hold", "lose":
		for _, n := range p.nics {
			if c.Device == "" || c.Device == n.name {
				n.obey(c)
			}
		}
		return nil
	}
	for _, q := range p.named(c) {
		switch c.Do {
		case "error":
			q.toError()
		case "reset":
			q.toReset()
		case "drop":
			q.sendCQ.drop(q)
			q.recvCQ.drop(q)
		case "mute":
			q.isMuted = c.On
		case "list":
			a.QPs = append(a.QPs, q.info())
		default:
			return fmt.Errorf("simverbs: no command %q", c.Do)
		}
	}
	return nil
}

// named returns the queue pairs that a command is about.
func (p *Provider) named(c command) []*qp {
	var of []*qp
	for _, n := range p.nics {
		for _, q := range n.qps {
			if (c.Device == "" || c.Device == n.name) && (c.QP == 0 || c.QP == q.num) {
				of = append(of, q)
			}
		}
	}
	sort.Slice(of, func(i, j int) bool {
		if of[i].d.n != of[j].d.n {
			return of[i].d.n.name < of[j].d.n.name
		}
		return of[i].num < of[j].num
	})
	return of
}

func (q *qp) info() QPInfo {
	i := QPInfo{
		QPName: QPName{q.d.p.options.Host, q.d.n.name, q.num},
		State:  q.state, Port: q.port, Posted: len(q.sends),
	}
	queues := map[*cq]bool{q.sendCQ: true, q.recvCQ: true}
	for c := range queues {
		for _, e := range c.entries {
			if e.of == q {
				i.Waiting++
			}
		}
	}
	return i
}

func (n *nic) obey(c command) {
	switch c.Do {
	case "starve":
		n.starved = c.On
	case "hold":
		n.held = c.On
		for d := range n.opened {
			for q := range d.cqs {
				if len(q.entries) > 0 {
					q.tell()
				}
			}
		}
	case "lose":
		for d := range n.opened {
			d.lose()
		}
	}
}
