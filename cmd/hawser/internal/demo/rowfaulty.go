package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// faultyPlugin is the binary, without its prefix, that does tcp's work with
// faults. It lies beside the others where this program was built; packages do
// not have it.
const faultyPlugin = "faulty"

func prepareFaulty(s *stage) (err error) {
	s.dir, err = os.MkdirTemp("", "hwd")
	return err
}

func (s *stage) controlOf(node string) string { return filepath.Join(s.dir, node) }

func setupFaulty(s *stage, node string, x *lab.Setup) {
	seed := s.o.Seed * 2
	if node == senderName {
		seed++
	}
	settings, _ := json.Marshal(map[string]any{"faults": map[string]any{"seed": seed, "control": s.controlOf(node)}})
	x.Plugins = map[string]string{first: faultyPlugin}
	x.Settings = map[string]json.RawMessage{first: settings}
}

// faultCounts are those of hawser-faulty, of what it sends.
type faultCounts struct {
	Dropped, Doubled, Delayed, Reordered uint64
}

// control asks a node's faulty plugin for something, and returns its counts.
func (s *stage) control(node string, request any) (faultCounts, error) {
	var a struct {
		Counts struct{ Send faultCounts }
		Error  string
	}
	conn, err := net.DialTimeout("unix", s.controlOf(node), reportTimeout)
	if err != nil {
		return a.Counts.Send, fmt.Errorf("hawser-faulty of the %s: %w", node, err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(reportTimeout))
	line, err := json.Marshal(request)
	if err == nil {
		_, err = conn.Write(append(line, '\n'))
	}
	if err == nil {
		line, err = bufio.NewReader(conn).ReadBytes('\n')
	}
	if err == nil {
		err = json.Unmarshal(line, &a)
	}
	if err == nil && a.Error != "" {
		err = errors.New(a.Error)
	}
	if err != nil {
		err = fmt.Errorf("hawser-faulty of the %s: %w", node, err)
	}
	return a.Counts.Send, err
}

// misbehave switches the faults on when the stream has begun. They stay.
func misbehave(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, max(1, s.o.Count/50)); err != nil {
		return err
	}
	p := max(0.01, 40/float64(s.o.Count))
	for _, node := range []string{senderName, receiverName} {
		f := s.record(lab.Now(), "%.3g%% of what the %s's tcp sends dropped, doubled, delayed, reordered, each", 100*p, node)
		_, err := s.control(node, map[string]any{"set": map[string]any{
			"send": map[string]any{"drop": p, "double": p, "delay": p, "reorder": p},
		}})
		if err != nil {
			return err
		}
		f.Proof = "not counted yet"
	}
	return nil
}

func judgeFaulty(s *stage, _ *ledger, r *Result) {
	var all faultCounts
	for i, node := range []string{senderName, receiverName} {
		c, err := s.control(node, struct{}{})
		if err != nil {
			s.problems = append(s.problems, err.Error())
			continue
		}
		if i < len(s.faults) {
			s.faults[i].Proof = fmt.Sprintf("%d dropped, %d doubled, %d delayed, %d overtaken", c.Dropped, c.Doubled, c.Delayed, c.Reordered)
		}
		s.require(node != senderName || c.Dropped > 0, "the sender's tcp dropped nothing")
		all.Dropped += c.Dropped
		all.Doubled += c.Doubled
		all.Delayed += c.Delayed
		all.Reordered += c.Reordered
	}
	s.require(all.Dropped > 0 && all.Doubled > 0 && all.Delayed > 0 && all.Reordered > 0, "a fault never fired: %+v", all)
	s.require(r.Resent > 0, "nothing was resent, although frames were dropped")
	s.require(r.Suppressed > 0, "no copy was recognised, although frames were doubled")
	s.require(r.By[first] > 0, "nothing went over %s", first)
}

// dropSome has both nodes' tcp drop 1% of what they send. It stays so.
func dropSome(ctx context.Context, s *stage) error {
	if err := s.awaitSent(ctx, s.o.Count/100); err != nil {
		return err
	}
	for _, node := range []string{senderName, receiverName} {
		f := s.record(lab.Now(), "1%% of what the %s's tcp sends dropped", node)
		_, err := s.control(node, map[string]any{"set": map[string]any{"send": map[string]any{"drop": 0.01}}})
		if err != nil {
			return err
		}
		f.Proof = "not counted yet"
	}
	return nil
}

func judgeMillion(s *stage, l *ledger, r *Result) {
	for i, node := range []string{senderName, receiverName} {
		c, err := s.control(node, struct{}{})
		if err != nil {
			s.problems = append(s.problems, err.Error())
		} else if i < len(s.faults) {
			s.faults[i].Proof = fmt.Sprintf("%d dropped", c.Dropped)
		}
		s.require(c.Dropped > 0, "the %s's tcp dropped nothing", node)
		// Its frames are the notifications; those that rpcfallback took are few.
		s.require(node != senderName || c.Dropped > uint64(s.o.Count)/200, "the sender's tcp dropped %d of %d, less than half a percent", c.Dropped, s.o.Count)
	}
	s.require(r.Resent > 0, "nothing was resent, although frames were dropped")
	var pressed int
	if s.call(s.sender, "pressed", &pressed) == nil {
		s.require(pressed == 0, "Notify found no room %d times", pressed)
	}
	if n := len(l.ended); n > 1 && len(l.sent) > 0 {
		took := l.ended[n-1].At - l.sent[0].At
		s.note("%d acknowledged in %s, %.0f a second; Notify found no room %d times", r.Acked, lap(took), float64(r.Acked)/took.Seconds(), pressed)
	}
}
