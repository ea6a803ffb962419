//go:build linux && cgo

package ibverbs

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/verbstest"
)

// cutLink names, in the environment, a network device under an RDMA device
// that tests may take down.
const cutLink = "IBVERBS_TEST_LINK"

// lastRail returns the device over the link that may be cut.
func lastRail(t *testing.T) (p verbs.Provider, device, link string) {
	t.Helper()
	p, infos := devices(t, 1)
	link = os.Getenv(cutLink)
	for _, i := range infos {
		if len(i.Netdevs) > 0 && i.Netdevs[0] == link {
			return p, i.Name, link
		}
	}
	t.Skipf("SKIPPED, no RDMA device on a link in %s: run testdata/lab.sh", cutLink)
	return nil, "", ""
}

func setLink(t *testing.T, link, state string) {
	t.Helper()
	if out, err := exec.Command("ip", "link", "set", link, state).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// TestLinkEvents: a link that goes down and comes back is told, and so is the
// port's state.
func TestLinkEvents(t *testing.T) {
	p, device, link := lastRail(t)
	d, err := p.Open(device)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	stuck := time.AfterFunc(20*time.Second, d.Interrupt)
	defer stuck.Stop()
	await := func(state string, want verbs.EventType, isActive bool) {
		t.Helper()
		start := time.Now()
		setLink(t, link, state)
		for {
			e, err := d.Event()
			if err != nil {
				t.Fatalf("%s: no event %d: %v", state, want, err)
			}
			t.Logf("%s: %+v after %v", state, e, time.Since(start).Round(time.Millisecond))
			if e.Type == want && e.Port == 1 {
				break
			}
		}
		ports, err := d.Ports()
		if err != nil || ports[0].Active != isActive {
			t.Fatalf("%s: %+v, %v", state, ports, err)
		}
		t.Logf("%s: %+v", state, ports[0])
	}
	defer setLink(t, link, "up")
	await("down", verbs.PortError, false)
	await("up", verbs.PortActive, true)
}

// TestDeadPath measures how long it takes until a path that is cut is told,
// with the attributes of the transport's queue pairs.
func TestDeadPath(t *testing.T) {
	p, device, link := lastRail(t)
	a, b := localEnd(t, p, device), dialEnd(t, device)
	defer func() {
		for _, e := range []verbstest.End{a, b} {
			if err := e.Stop(); err != nil {
				t.Error(err)
			}
		}
	}()
	for _, cut := range []struct {
		name string
		do   func(peer uint32)
	}{
		{"the peer's queue pair is gone", func(peer uint32) { must(t, b.CloseQP(peer)) }},
		{"the link is down", func(uint32) { setLink(t, link, "down") }},
	} {
		must(t, a.Start(verbstest.Setup{}))
		must(t, b.Start(verbstest.Setup{}))
		from, err := a.NewQP(8)
		must(t, err)
		to, err := b.NewQP(8)
		must(t, err)
		must(t, b.Connect(to.QP, from, verbstest.Attr{}, verbs.RTS))
		must(t, a.Connect(from.QP, to, verbstest.Attr{}, verbs.RTS))
		_, err = b.PostRecv(0, 1)
		must(t, err)
		expect := func(want verbs.Status, wait time.Duration) {
			t.Helper()
			start := time.Now()
			_, err := a.PostSend(from.QP, verbstest.WR{ID: 1, Length: 64, Signaled: true})
			must(t, err)
			wcs, err := a.Poll(1, wait)
			if err != nil || len(wcs) != 1 || wcs[0].Status != want {
				t.Errorf("%s: %+v, %v; want %v within %v", cut.name, wcs, err, want, wait)
			}
			t.Logf("%s: %v after %v", cut.name, want, time.Since(start).Round(time.Millisecond))
		}
		expect(verbs.Success, 10*time.Second)
		cut.do(to.QP)
		expect(verbs.RetryExceeded, 30*time.Second)
		setLink(t, link, "up")
		must(t, a.Stop())
		must(t, b.Stop())
	}
}

// TestUnreadEvents: objects whose events nobody took are destroyed all the same.
func TestUnreadEvents(t *testing.T) {
	p, infos := devices(t, 1)
	clean := cleanFiles()
	d, err := p.Open(infos[0].Name)
	must(t, err)
	pd, err := d.AllocPD()
	must(t, err)
	ch, err := d.CreateChannel()
	must(t, err)
	cq, err := d.CreateCQ(16, ch)
	must(t, err)
	srq, err := pd.CreateSRQ(16)
	must(t, err)
	must(t, cq.Arm())
	q, err := pd.CreateQP(verbs.QPInit{SendCQ: cq, RecvCQ: cq, SRQ: srq, SendWRs: 4, MaxSGE: 1})
	must(t, err)
	must(t, q.ToError())
	n, err := q.Post([]verbs.SendWR{{ID: 7}}) // flushed, which the channel tells
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	must(t, ch.Wait())
	must(t, cq.Arm())
	if n, err = q.Post([]verbs.SendWR{{ID: 8}}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for _, c := range []interface{ Close() error }{q, srq, cq, ch, pd, d} {
		done := make(chan error, 1)
		go func() { done <- c.Close() }()
		select {
		case err := <-done:
			must(t, err)
		case <-time.After(20 * time.Second):
			t.Fatalf("closing %T hangs", c)
		}
	}
	must(t, clean())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// BenchmarkPollEmpty is what looking in vain costs, with room for 1 and for 32.
func BenchmarkPollEmpty(b *testing.B) {
	p, infos := devices(b, 1)
	d, err := p.Open(infos[0].Name)
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	cq, err := d.CreateCQ(64, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer cq.Close()
	for _, room := range []int{1, 32} {
		b.Run(map[int]string{1: "1", 32: "32"}[room], func(b *testing.B) {
			wcs := make([]verbs.WC, room)
			for b.Loop() {
				if n, err := cq.Poll(wcs); n != 0 || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
