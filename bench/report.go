package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

const (
	plainTCP = "plain TCP"
	unary    = "unary gRPC"
	overTCP  = "hawser tcp"
	overRPC  = "hawser rpcfallback"
	tcpTLS   = "hawser tcp, TLS"
	rpcTLS   = "hawser rpcfallback, TLS"
)

func contenders(s settings) []contender {
	return []contender{
		{name: plainTCP, guarantee: "read by the peer's process", open: openPlainTCP},
		{name: overTCP, guarantee: "in the peer's queue, once, whatever fails", open: func() (client, error) { return openHawser(s.bin, "tcp", "") }},
		{name: overRPC, guarantee: "in the peer's queue, once, whatever fails", open: func() (client, error) { return openHawser(s.bin, "rpcfallback", "") }},
		{name: tcpTLS, guarantee: "in the peer's queue, once, whatever fails", open: func() (client, error) { return openHawser(s.bin, "tcp", s.keys) }},
		{name: rpcTLS, guarantee: "in the peer's queue, once, whatever fails", open: func() (client, error) { return openHawser(s.bin, "rpcfallback", s.keys) }},
		{name: unary, guarantee: "the peer's handler returned", open: openUnary, unary: true},
	}
}

// results are the rounds of each contender, in order.
type results struct {
	contenders []contender
	rounds     map[string][]measured
}

func newResults(cs []contender) *results { return &results{cs, map[string][]measured{}} }

func (r *results) add(name string, m measured) { r.rounds[name] = append(r.rounds[name], m) }

// aim is a ratio that Hawser wants to keep.
type aim struct {
	text       string
	what, base string
	figure     func(measured) float64
	most       float64 // the ratio is to be at most this,
	least      float64 // or at least this
}

func seconds(d time.Duration) float64 { return d.Seconds() }

var aims = []aim{
	{"64 B round trip, p50, of plain TCP", overTCP, plainTCP, func(m measured) float64 { return seconds(m.p50) }, 3, 0},
	{"64 B round trip, p99, of plain TCP", overTCP, plainTCP, func(m measured) float64 { return seconds(m.p99) }, 0, 0},
	{"burst of 2000, first Notify to last ack, of plain TCP", overTCP, plainTCP, func(m measured) float64 { return seconds(m.burst) }, 3.5, 0},
	{"notifications/s with acks, window 256, of plain TCP", overTCP, plainTCP, func(m measured) float64 { return m.rate }, 0, 0.25},
	{"notifications/s with acks, of one unary gRPC call each", overTCP, unary, func(m measured) float64 { return m.rate }, 0, 15},
	{"rpcfallback round trip, p50, of a unary gRPC call", overRPC, unary, func(m measured) float64 { return seconds(m.p50) }, 2, 0},
	{"rpcfallback round trip, p99, of a unary gRPC call", overRPC, unary, func(m measured) float64 { return seconds(m.p99) }, 0, 0},
	{"tcp under TLS, round trip, p50, of tcp without", tcpTLS, overTCP, func(m measured) float64 { return seconds(m.p50) }, 0, 0},
	{"tcp under TLS, notifications/s with acks, of tcp without", tcpTLS, overTCP, func(m measured) float64 { return m.rate }, 0, 0},
	{"rpcfallback under TLS, round trip, p50, of rpcfallback without", rpcTLS, overRPC, func(m measured) float64 { return seconds(m.p50) }, 0, 0},
	{"rpcfallback under TLS, notifications/s with acks, of rpcfallback without", rpcTLS, overRPC, func(m measured) float64 { return m.rate }, 0, 0},
}

// ratios are those of the same rounds, ascending.
func (r *results) ratios(a aim) []float64 {
	what, base := r.rounds[a.what], r.rounds[a.base]
	list := make([]float64, len(what))
	for i := range what {
		list[i] = a.figure(what[i]) / a.figure(base[i])
	}
	slices.Sort(list)
	return list
}

func median(sorted []float64) float64 { return sorted[len(sorted)/2] }

func (r *results) report(s settings, awake bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "Measured on %s; %d rounds, contenders in turn, fresh processes each round; cores kept awake: %v. Ratios travel, times do not.\n\n",
		conditions(), s.rounds, awake)
	b.WriteString("| ratio | aim | median | lowest | highest | |\n|---|---|---|---|---|---|\n")
	for _, a := range aims {
		list := r.ratios(a)
		fmt.Fprintf(&b, "| %s | %s | %.2f | %.2f | %.2f | %s |\n", a.text, a.wanted(), median(list), list[0], list[len(list)-1], a.verdict(median(list)))
	}
	b.WriteString("\n| contender | round trip p50 us | p99 us | burst of 2000 ms | thousand/s, window 256 | acknowledged means |\n|---|---|---|---|---|---|\n")
	for _, c := range r.contenders {
		rounds := r.rounds[c.name]
		of := func(f func(measured) float64) float64 {
			list := make([]float64, len(rounds))
			for i, m := range rounds {
				list[i] = f(m)
			}
			slices.Sort(list)
			return median(list)
		}
		fmt.Fprintf(&b, "| %s | %.0f | %.0f | %.2f | %.0f | %s |\n", c.name,
			of(func(m measured) float64 { return seconds(m.p50) * 1e6 }), of(func(m measured) float64 { return seconds(m.p99) * 1e6 }),
			of(func(m measured) float64 { return seconds(m.burst) * 1e3 }), of(func(m measured) float64 { return m.rate / 1e3 }), c.guarantee)
	}
	return b.String()
}

// conditions are when and where it is measured.
func conditions() string {
	return fmt.Sprintf("%s, %d cores, %s/%s, %s", time.Now().Format("2006-01-02"), runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version())
}

func (a aim) wanted() string {
	switch {
	case a.most > 0:
		return fmt.Sprintf("%g or less", a.most)
	case a.least > 0:
		return fmt.Sprintf("%g or more", a.least)
	default:
		return ""
	}
}

func (a aim) verdict(ratio float64) string {
	switch {
	case a.most > 0 && ratio > a.most:
		return fmt.Sprintf("missed by %.0f%%", (ratio/a.most-1)*100)
	case a.least > 0 && ratio < a.least:
		return fmt.Sprintf("missed by %.0f%%", (1-ratio/a.least)*100)
	case a.most > 0 || a.least > 0:
		return "met"
	default:
		return ""
	}
}

// writeReport puts a part of the report between its marks of a document, whose
// other text is a person's.
func writeReport(file, part, report string) error {
	beginMark, endMark := "<!-- "+part+": begin -->", "<!-- "+part+": end -->"
	old, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	text := string(old)
	begin, end := strings.Index(text, beginMark), strings.Index(text, endMark)
	if begin < 0 || end < begin {
		text = strings.TrimRight(text, "\n") + "\n\n" + beginMark + "\n" + endMark + "\n"
		begin, end = strings.Index(text, beginMark), strings.Index(text, endMark)
	}
	text = text[:begin] + beginMark + "\n" + report + text[end:]
	return os.WriteFile(file, []byte(strings.TrimLeft(text, "\n")), 0o644)
}
