package simverbs

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
)

// Controller changes a fabric from any process, also one without a provider.
//
// What it changes of ports and links holds for processes that start later too.
// Each call returns once every process knows; a frozen one learns it when it
// goes on. What it does to queue pairs and devices reaches the processes that
// run, and fails if one of them is frozen.
type Controller struct{ dir string }

// Control returns the controls of a directory's fabric.
func Control(dir string) *Controller { return &Controller{dir} }

// answerIn bounds the wait for a process, which may be frozen.
const answerIn = 2 * time.Second

var errNoAnswer = errors.New("simverbs: the process does not answer")

// QPName names a queue pair of the fabric. Empty and zero fields stand for all.
type QPName struct {
	Host, Device string
	Num          uint32
}

// PortDown takes a port down: it carries nothing, its devices raise PortError.
func (c *Controller) PortDown(n PortName) error { return c.setDown(n, true) }

// PortUp brings it back.
func (c *Controller) PortUp(n PortName) error { return c.setDown(n, false) }

func (c *Controller) setDown(n PortName, down bool) error {
	return c.changePort(n, func(p *fabricPort) { p.Down = down })
}

// SetGIDs changes a port's table. The host keeps it until its directory goes.
func (c *Controller) SetGIDs(n PortName, gids ...verbs.GID) error {
	return c.changePort(n, func(p *fabricPort) {
		p.Changed, p.GIDs = true, nil
		for _, g := range gids {
			g.Addr = netip.AddrFrom16(g.Addr.As16())
			p.GIDs = append(p.GIDs, g)
		}
	})
}

func (c *Controller) changePort(n PortName, change func(*fabricPort)) error {
	return c.change(func(f *fabric) error {
		p := f.Ports[n.String()]
		if p == nil {
			return fmt.Errorf("simverbs: no port %s", n)
		}
		change(p)
		return nil
	})
}

// Cut cuts the link between two ports, one way: what the first sends is lost.
// No port hears of it.
func (c *Controller) Cut(from, to PortName) error {
	return c.change(func(f *fabric) error {
		f.Cuts[cutName(from.String(), to.String())] = true
		return nil
	})
}

// Heal undoes Cut.
func (c *Controller) Heal(from, to PortName) error {
	return c.change(func(f *fabric) error {
		delete(f.Cuts, cutName(from.String(), to.String()))
		return nil
	})
}

// CutBoth cuts both ways.
func (c *Controller) CutBoth(a, b PortName) error { return errors.Join(c.Cut(a, b), c.Cut(b, a)) }

// HealBoth heals both ways.
func (c *Controller) HealBoth(a, b PortName) error { return errors.Join(c.Heal(a, b), c.Heal(b, a)) }

func (c *Controller) change(do func(*fabric) error) error {
	if err := changeFabric(c.dir, do); err != nil {
		return err
	}
	_, err := c.ask("", command{Do: refreshCommand})
	return err
}

// ToError moves queue pairs to the error state behind their user's back.
func (c *Controller) ToError(n QPName) error { return c.tell(n, "error", false) }

// ToReset moves queue pairs to RESET; completions that were not polled go.
func (c *Controller) ToReset(n QPName) error { return c.tell(n, "reset", false) }

// DropCompletions drops what was not polled.
func (c *Controller) DropCompletions(n QPName) error { return c.tell(n, "drop", false) }

// Mute swallows all further completions of queue pairs, or lets them pass again.
func (c *Controller) Mute(n QPName, on bool) error { return c.tell(n, "mute", on) }

// Starve makes a host's device answer as if no receive were posted.
func (c *Controller) Starve(host, device string, on bool) error {
	return c.tell(QPName{Host: host, Device: device}, "starve", on)
}

// HoldCompletions keeps the completions of a host's device back from Poll, so
// that a test knows that they wait.
func (c *Controller) HoldCompletions(host, device string, on bool) error {
	return c.tell(QPName{Host: host, Device: device}, "hold", on)
}

// LoseDevice is a fatal error of a host's device.
func (c *Controller) LoseDevice(host, device string) error {
	return c.tell(QPName{Host: host, Device: device}, "lose", false)
}

func (c *Controller) tell(n QPName, do string, on bool) error {
	_, err := c.ask(n.Host, command{Do: do, Device: n.Device, QP: n.Num, On: on})
	return err
}

// Inject makes a later call of each of the host's processes fail.
func (c *Controller) Inject(host string, i Injection) error {
	_, err := c.ask(host, command{Do: "inject", Inject: &i})
	return err
}

// QPs lists the host's queue pairs.
func (c *Controller) QPs(host string) ([]QPInfo, error) {
	replies, err := c.ask(host, command{Do: "list"})
	var all []QPInfo
	for _, r := range replies {
		all = append(all, r.QPs...)
	}
	return all, err
}

// Accounts returns those of each of the host's processes.
func (c *Controller) Accounts(host string) ([]Accounts, error) {
	replies, err := c.ask(host, command{Do: "accounts"})
	var all []Accounts
	for _, r := range replies {
		all = append(all, r.Accounts)
	}
	return all, err
}

// ask asks every process of a host, or of all, at once.
func (c *Controller) ask(host string, cmd command) ([]reply, error) {
	processes, err := c.processes(host)
	if err != nil {
		return nil, err
	}
	var (
		wg      sync.WaitGroup
		mu      sync.Mutex
		replies []reply
		errs    []error
	)
	for _, p := range processes {
		wg.Go(func() {
			r, err := c.askOne(p, cmd)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				errs = append(errs, err)
			} else if r != nil {
				replies = append(replies, *r)
			}
		})
	}
	wg.Wait()
	return replies, errors.Join(errs...)
}

func (c *Controller) processes(host string) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(c.dir, "p"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		parts := strings.Split(e.Name(), ".")
		if of := strings.Join(parts[:max(0, len(parts)-2)], "."); host == "" || of == host {
			names = append(names, e.Name())
		}
	}
	return names, err
}

// askOne returns nil for a process that is gone, and for a frozen one that has
// to read the fabric again before it does anything else.
func (c *Controller) askOne(process string, cmd command) (*reply, error) {
	conn, err := net.DialTimeout("unix", socketOf(c.dir, process), answerIn)
	if err != nil {
		if isAlive(c.dir, process) {
			return nil, errNoAnswer
		}
		os.Remove(socketOf(c.dir, process))
		return nil, nil
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerIn))
	var r reply
	if _, err = conn.Write([]byte{carriesCommands}); err == nil {
		if err = json.NewEncoder(conn).Encode(cmd); err == nil {
			err = json.NewDecoder(conn).Decode(&r)
		}
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded) && cmd.Do != refreshCommand:
		return nil, errNoAnswer
	case err != nil:
		return nil, nil // it ended meanwhile
	case r.Error != "":
		return nil, errors.New(r.Error)
	}
	return &r, nil
}
