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
