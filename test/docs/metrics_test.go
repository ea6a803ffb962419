package docs

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/engine"
)

// TestMetricsAreDocumented compares the table in operations.md with the
// engine's metrics.
func TestMetricsAreDocumented(t *testing.T) {
	const name = "docs/operations.md"
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	infos := engine.MetricInfos()
	if len(infos) < 40 {
		t.Errorf("only %d metrics", len(infos))
	}
	doc := read(t, filepath.Join(root, name))
	for _, m := range infos {
		labels, kind := "", m.Type
		for i, l := range m.Labels {
			if i > 0 {
				labels += ", "
			}
			labels += "`" + l + "`"
			if !strings.Contains(doc, "| `"+l+"`") && !strings.Contains(doc, ", `"+l+"`") {
				t.Errorf("%s does not say which values %s has", name, l)
			}
		}
		if m.PerPeer {
			kind += ", per peer"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, kind, labels, m.Help)
	}
	re := regexp.MustCompile(`(?s)<!-- generated: metrics -->\n.*?<!-- end -->`)
	if !re.MatchString(doc) {
		t.Fatalf("%s has no place for metrics", name)
	}
	fresh := re.ReplaceAllLiteralString(doc, "<!-- generated: metrics -->\n"+b.String()+"<!-- end -->")
	settle(t, name, doc, fresh)

	// An operator finds what to do, once, for each.
	_, advice, _ := strings.Cut(fresh, "### When a metric moves")
	advice, _, _ = strings.Cut(advice, "\n### ")
	for _, m := range infos {
		if n := strings.Count(advice, "`"+m.Name+"`"); n != 1 {
			t.Errorf("%s says %d times what to do when %s moves", name, n, m.Name)
		}
	}

	// What the page's text says of metrics exists.
	known := map[string]bool{}
	for _, m := range infos {
		known[m.Name] = true
	}
	for _, m := range regexp.MustCompile(`hawser_[a-z_]+[a-z]\b`).FindAllString(fresh, -1) {
		if !known[m] && m != "hawser_transport" && m != "hawser_plugin" {
			t.Errorf("%s names %s, which is no metric", name, m)
		}
	}
}

// TestEventsAreDocumented compares the table in operations.md with the kinds
// of events.
func TestEventsAreDocumented(t *testing.T) {
	const name = "docs/operations.md"
	_, section, _ := strings.Cut(read(t, filepath.Join(root, name)), "\n## Events\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := regexp.MustCompile("(?m)^\\| ([a-z ]+) \\| `[A-Z]").FindAllStringSubmatch(section, -1)
	for kind := engine.PeerUp; kind.String() != "unknown"; kind++ {
		i := int(kind - engine.PeerUp)
		if i >= len(rows) || rows[i][1] != kind.String() {
			t.Fatalf("%s: row %d of the events is not %q: %q", name, i+1, kind, rows)
		}
	}
	if last := engine.TransfersResolved; len(rows) != int(last) {
		t.Errorf("%s has %d events, the engine %d", name, len(rows), last)
	}
}
