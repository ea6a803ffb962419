// Command bench measures Hawser's notifications and transfers against plain
// programs that do the same, in one run: contenders take turns round by round, in an order that
// rotates, with fresh processes each round, and what is reported is ratios of
// the same round. It is a module of its own, so that what Hawser is measured
// against is no dependency of Hawser.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"time"
)

// settings are the run's sizes.
type settings struct {
	bin       string
	keys      string // directory of the keys for those under TLS
	out       string
	rounds    int
	pings     int
	bursts    int
	burst     int
	rate      int
	window    int
	payload   int
	peers     int
	standing  bool
	lowJitter bool

	transfers, transferWindow, transferBytes int
}

func main() {
	if len(os.Args) > 2 && os.Args[1] == "peer" {
		fail(servePeer(os.Args[2], os.Args[3:]))
		return
	}
	var s settings
	flag.StringVar(&s.bin, "bin", "../bin", "directory of the plugin binaries")
	flag.StringVar(&s.out, "out", "", "file to write the report to, besides standard output")
	flag.IntVar(&s.rounds, "rounds", 7, "rounds; 0 leaves the contenders out")
	flag.IntVar(&s.pings, "pings", 3000, "round trips a round")
	flag.IntVar(&s.bursts, "bursts", 20, "bursts a round")
	flag.IntVar(&s.burst, "burst", 2000, "notifications in a burst")
	flag.IntVar(&s.rate, "rate", 200000, "notifications of the rate measurement, a round")
	flag.IntVar(&s.window, "window", 256, "notifications without an ack in the rate measurement")
	flag.IntVar(&s.payload, "payload", 64, "bytes of payload")
	flag.IntVar(&s.peers, "peers", 1000, "idle peers, in memory")
	flag.BoolVar(&s.standing, "standing", true, "measure silent peers and idle engines")
	flag.IntVar(&s.transfers, "transfers", 5, "rounds of transfers; 0 leaves them out")
	flag.IntVar(&s.transferWindow, "transfer-window", 4, "transfers under way")
	flag.IntVar(&s.transferBytes, "transfer-bytes", 1<<30, "bytes of each measurement of transfers")
	flag.BoolVar(&s.lowJitter, "awake", true, "hold the cores awake (/dev/cpu_dma_latency) where that is allowed")
	flag.Parse()
	fail(run(s))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(s settings) error {
	held := false
	if s.lowJitter {
		release, err := stayAwake()
		if held = err == nil; held {
			defer release()
		}
	}
	keys, err := os.MkdirTemp("", "hawser-bench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(keys) //nolint:errcheck // nothing is left to do about it
	if err := makeKeys(keys); err != nil {
		return err
	}
	s.keys = keys
	all := contenders(s)
	results := newResults(all)
	for round := range s.rounds {
		for i := range all {
			c := all[(i+round)%len(all)]
			start := time.Now()
			m, err := measure(c, s)
			if err != nil {
				return fmt.Errorf("round %d, %s: %w", round+1, c.name, err)
			}
			results.add(c.name, m)
			fmt.Fprintf(os.Stderr, "round %d/%d %-22s %s (%.1f s)\n", round+1, s.rounds, c.name, m, time.Since(start).Seconds())
		}
	}
	report := ""
	if s.rounds > 0 {
		report = results.report(s, held)
	}
	if s.standing {
		figures, err := standing(s)
		if err != nil {
			return err
		}
		report += standingReport(figures)
	}
	if err := s.publish("bench", report); err != nil {
		return err
	}
	if s.transfers == 0 {
		return nil
	}
	list, err := measureTransfers(s)
	if err != nil {
		return err
	}
	return s.publish("bench transfers", transferReport(s, held, list))
}

// publish prints a part of the report, and writes it between its marks. What was
// not measured stays as it is.
func (s *settings) publish(part, report string) error {
	fmt.Print(report)
	if s.out == "" || report == "" {
		return nil
	}
	return writeReport(s.out, part, report)
}

// stayAwake asks the kernel to keep idle cores from sleeping, which otherwise
// costs tens of microseconds per wake-up and depends on what else runs.
func stayAwake() (release func(), err error) {
	f, err := os.OpenFile("/dev/cpu_dma_latency", os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.Write([]byte{0, 0, 0, 0}); err != nil {
		_ = f.Close()
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// self starts this program again as a contender's peer.
func self(kind string, args ...string) (*child, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return start(exec.Command(exe, append([]string{"peer", kind}, args...)...))
}
