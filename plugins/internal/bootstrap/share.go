package bootstrap

import (
	"context"
	"sync/atomic"
	"time"
)

// While a listener is shared, during a replacement, a connection may reach the
// instance that did not answer. The dialing side tries again, and the instance
// that was reached by mistake stands back, since the one that is quicker to
// accept would otherwise be quicker each time.
const (
	firstRetry = time.Millisecond
	lastRetry  = 8 * time.Millisecond
	maxRetries = 64

	// standBack is longer than two retries: the instance that is asked to
	// stand back may already wait for the first of them.
	standBack = 20 * time.Millisecond
)

// Persist dials until it has reached the instance that it is meant for.
func Persist(ctx context.Context, dial func() (Verdict, error)) error {
	wait := firstRetry
	for attempt := 0; ; attempt++ {
		verdict, err := dial()
		if err != nil {
			return err
		}
		if verdict != WrongInstance || attempt == maxRetries {
			return verdict.Err()
		}
		select {
		case <-time.After(wait):
			wait = min(2*wait, lastRetry)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Courtesy makes an instance stand back from a shared listener. Its zero value
// is ready.
type Courtesy struct {
	asked atomic.Bool
	// until is the end of the last pause; only the accepting goroutine uses
	// it.
	until time.Time
}

// Ask asks for a pause: a connection for another instance has come here.
func (c *Courtesy) Ask() { c.asked.Store(true) }

// Pause stands back if that was asked for, or until done. Anybody can ask, so
// that pauses take half of the time at most.
func (c *Courtesy) Pause(done <-chan struct{}) {
	if !c.asked.Swap(false) || time.Since(c.until) < standBack {
		return
	}
	select {
	case <-time.After(standBack):
	case <-done:
	}
	c.until = time.Now()
}
