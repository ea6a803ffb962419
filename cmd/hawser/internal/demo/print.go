package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// PrintText prints a row for people.
func PrintText(w io.Writer, r Result) {
	if r.Skipped != "" {
		fmt.Fprintf(w, "skip  %s: %s\n", r.Scenario, r.Skipped)
		return
	}
	verdict := "ok  "
	if !r.Holds {
		verdict = "FAIL"
	}
	fmt.Fprintf(w, "%s  %-76s %4d/%d  %d duplicates  %5.1f s\n",
		verdict, r.Scenario, r.Received, r.Expected, r.Duplicates, r.TookMS/1000)
	fmt.Fprintf(w, "      %s; longest gap %s, slowest acknowledgement %s; %d resent, %d copies recognised\n",
		carried(r.By), lap(r.LongestGap), lap(r.Slowest), r.Resent, r.Suppressed)
	if st := r.Stats[senderName]; st.OpsDone > 0 {
		fmt.Fprintf(w, "      %d transfers of %d bytes each, with a notification behind each: %d pieces repeated, %d transfers failed\n",
			st.OpsDone, cellBytes, st.ChunksRepeated, st.OpsFailed+st.OpsUnknown)
	}
	for _, f := range r.Faults {
		fmt.Fprintf(w, "      at %d (%d received): %s: %s\n", f.At, f.Received, f.What, f.Proof)
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "      %s\n", n)
	}
	for _, p := range r.Problems {
		fmt.Fprintf(w, "      does not hold: %s\n", p)
	}
	for _, node := range slices.Sorted(maps.Keys(r.Words)) {
		if words := r.Words[node]; words != "" {
			fmt.Fprintf(w, "      the %s's log ends with:\n        %s\n", node, strings.ReplaceAll(lastLines(words, 8), "\n", "\n        "))
		}
	}
}

// PrintJSON prints a row for programs, as one line.
func PrintJSON(w io.Writer, r Result) {
	_ = json.NewEncoder(w).Encode(r)
}

// carried tells which transport carried how many, the most first.
func carried(by map[string]int) string {
	names := slices.SortedFunc(maps.Keys(by), func(a, b string) int {
		if by[a] != by[b] {
			return by[b] - by[a]
		}
		return strings.Compare(a, b)
	})
	for i, n := range names {
		names[i] = fmt.Sprintf("%s %d", n, by[n])
	}
	if len(names) == 0 {
		return "nothing arrived"
	}
	return strings.Join(names, ", ")
}

// codes tells how many failed with which code.
func codes(failed map[string]int) string {
	var list []string
	for _, c := range slices.Sorted(maps.Keys(failed)) {
		list = append(list, fmt.Sprintf("%d %s", failed[c], c))
	}
	if len(list) == 0 {
		return "none"
	}
	return strings.Join(list, ", ")
}

func lastLines(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
