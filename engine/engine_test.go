package engine

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

func TestNotifyIsAcknowledgedAndReceivedOnce(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		sent := names("n", 100)
		var ds []*Delivery
		for _, n := range sent {
			ds = append(ds, w.notify(a, "b:1", n))
		}
		for _, d := range ds {
			if err := w.wait(d); err != nil {
				t.Fatal(err)
			}
			if r := d.Report(); r.End != Acknowledged || r.Transport != "fast" || r.Copies != 1 {
				t.Fatalf("report %+v", r)
			}
		}
		w.expect(b, sent...)
		if s := b.Stats(); s.Duplicates != 0 {
			t.Errorf("%d duplicates", s.Duplicates)
		}
	})
}

func TestBothWaysShareOneEndpoint(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		w.notify(a, "b:1", "ping")
		r, err := w.receive(b, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.wait(w.notify(b, r.From.Address, "pong")); err != nil {
			t.Fatal(err)
		}
		w.expect(a, "pong")
		if n := w.fast.Endpoints("a:1"); n != 1 {
			t.Errorf("%d endpoints, want 1", n)
		}
	})
}

func TestSimultaneousConnectsSettle(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		// Slow control plane: both offers are under way before either arrives.
		w.network.Delay("a:1", "b:1", 10*time.Millisecond)
		w.network.Delay("b:1", "a:1", 10*time.Millisecond)
		da, db := w.notify(a, "b:1", "x"), w.notify(b, "a:1", "y")
		if err := errors.Join(w.wait(da), w.wait(db)); err != nil {
			t.Fatal(err)
		}
		w.expect(b, "x")
		w.expect(a, "y")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := w.fast.Endpoints("a:1"); n != 1 {
			t.Errorf("%d endpoints, want 1", n)
		}
	})
}

func TestToOneself(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		d := w.notify(a, "a:1", "self")
		if err := w.wait(d); err != nil {
			t.Fatal(err)
		}
		w.expect(a, "self")
	})
}

func TestTransportDeathHandsOver(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		if err := w.wait(w.notify(a, "b:1", "warm")); err != nil {
			t.Fatal(err)
		}
		w.expect(b, "warm")
		w.fast.Cut("b:1", "a:1", "") // acks and receipts are held: all is pending
		sent := names("n", 50)
		for _, n := range sent {
			w.notify(a, "b:1", n)
		}
		synctest.Wait()
		if killed := w.fast.Kill("a:1"); killed == 0 {
			t.Fatal("the fault did not fire")
		}
		w.fast.Heal("", "", "")
		w.expect(b, sent...)
		if s := a.Stats(); s.HandedOver == 0 || s.Resent == 0 {
			t.Errorf("nothing was handed over: %+v", s)
		}
	})
}

func TestReceiverRestartEndsPendingTyped(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		if err := w.wait(w.notify(a, "b:1", "warm")); err != nil {
			t.Fatal(err)
		}
		w.fast.Cut("a:1", "b:1", "")
		w.slow.Cut("a:1", "b:1", "")
		d := w.notify(a, "b:1", "pending")
		synctest.Wait()
		w.network.Silence("b:1", "a:1", true) // no goodbye: it dies
		w.shut(b)
		w.network.Silence("b:1", "a:1", false)
		w.fast.Heal("", "", "")
		w.slow.Heal("", "", "")
		b = w.open("b:1")
		defer w.shut(a, b)
		err := w.wait(d)
		var de *DeliveryError
		if !errors.As(err, &de) || !errors.Is(err, DeliveryUnknown) {
			t.Fatalf("pending ended with %v", err)
		}
		if err := w.wait(w.notify(a, "b:1", "new")); err != nil {
			t.Fatal(err)
		}
		w.expect(b, "new")
	})
}

func TestNobodyThereFailsAtTheDeadline(t *testing.T) {
	run(t, func(w *world) {
		a := w.open("a:1")
		defer w.shut(a)
		start := time.Now()
		err := w.wait(w.notify(a, "nobody:1", "x"))
		if !errors.Is(err, NotSent) || !errors.Is(err, DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if d := time.Since(start); d < 59*time.Second || d > 62*time.Second {
			t.Errorf("ended after %v", d)
		}
		t.Log(err)
	})
}

func TestReloadMovesTrafficWithoutLoss(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		stop := make(chan struct{})
		done := make(chan []string)
		go func() {
			var sent []string
			for i := 0; ; i++ {
				select {
				case <-stop:
					done <- sent
					return
				case <-time.After(time.Millisecond):
				}
				n := fmt.Sprintf("r-%d", i)
				w.notify(a, "b:1", n)
				sent = append(sent, n)
			}
		}()
		time.Sleep(100 * time.Millisecond)
		for i, address := range []string{"a:1", "b:1"} {
			e := []*Engine{a, b}[i]
			if err := e.RestartTransport(context.Background(), "fast"); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond)
			_ = address
		}
		close(stop)
		w.expect(b, <-done...)
		for _, e := range []*Engine{a, b} {
			if s := e.Stats(); s.HandedOver != 0 || s.Duplicates != 0 {
				t.Errorf("%s: handed over %d, duplicates %d: the move was not graceful", e.address, s.HandedOver, s.Duplicates)
			}
			for _, s := range e.Transports() {
				if s.Name == "fast" && s.Restarts != 1 {
					t.Errorf("%s: %d restarts, want 1", e.address, s.Restarts)
				}
			}
		}
		if d := w.notify(a, "b:1", "after"); w.wait(d) != nil || d.Report().Transport != "fast" {
			t.Errorf("after: %+v", d.Report())
		}
		w.expect(b, "after")
	})
}

func TestRemovedTransportDrains(t *testing.T) {
	run(t, func(w *world) {
		a, b := w.open("a:1"), w.open("b:1")
		defer w.shut(a, b)
		sent := names("n", 40)
		for i, n := range sent {
			if i == 20 {
				cfg := w.configs["a:1"]
				cfg.Node.Name = "a:1"
				cfg.Transports = []TransportConfig{{Name: rpcFallbackName, InProcess: a.cfg.Transports[1].InProcess}}
				if err := a.Reload(context.Background(), cfg); err != nil {
					t.Fatal(err)
				}
			}
			if d := w.notify(a, "b:1", n); i >= 20 {
				if err := w.wait(d); err != nil || d.Report().Transport != rpcFallbackName {
					t.Fatalf("%v, %+v", err, d.Report())
				}
			}
		}
		w.expect(b, sent...)
		if s := a.Stats(); s.HandedOver != 0 {
			t.Errorf("%d handed over: the removal was not graceful", s.HandedOver)
		}
	})
}
