package docs

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-transport/hawser/engine"
	"github.com/hawser-transport/hawser/plugins/rdma/rdmatransport"
	"github.com/hawser-transport/hawser/plugins/rpcfallback/rpctransport"
	"github.com/hawser-transport/hawser/plugins/tcp/tcptransport"
)

// schema is the part of JSON schema that ours use.
type schema struct {
	Type        any                `json:"type"`
	Description string             `json:"description"`
	Default     any                `json:"default"`
	Minimum     *json.Number       `json:"minimum"`
	Maximum     *json.Number       `json:"maximum"`
	Enum        []any              `json:"enum"`
	Const       any                `json:"const"`
	AnyOf       []schema           `json:"anyOf"`
	Properties  map[string]*schema `json:"properties"`
	Items       *schema            `json:"items"`
}

func parse(t *testing.T, raw json.RawMessage) *schema {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	var s schema
	if err := d.Decode(&s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (s *schema) kind() string {
	for _, o := range s.AnyOf {
		if o.Type != nil {
			return fmt.Sprint(o.Type)
		}
	}
	if s.Type == nil { // of the values that it lists
		return "integer"
	}
	return fmt.Sprint(s.Type)
}

// bounds are the values that are allowed, or nothing.
func (s *schema) bounds() string {
	for _, o := range s.AnyOf {
		if o.Minimum != nil {
			return "-1, " + o.bounds()
		}
	}
	switch {
	case len(s.Enum) > 0:
		return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(s.Enum)), ", "), "[]")
	case s.Const != nil:
		return fmt.Sprint(s.Const)
	case s.Minimum != nil && s.Maximum != nil:
		return s.Minimum.String() + " to " + s.Maximum.String()
	}
	return ""
}

// table is the properties as Markdown, in the order of their names within a
// section; env tells the variable of each.
func (s *schema) table(prefix string, env bool) string {
	var b strings.Builder
	head, rule := "| key | type | default | allowed | meaning |", "|---|---|---|---|---|"
	fmt.Fprintln(&b, head)
	fmt.Fprintln(&b, rule)
	var names []string
	for name := range s.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := s.Properties[name]
		def := ""
		if p.Default != nil {
			def = fmt.Sprint(p.Default)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", prefix+name, p.kind(), def, p.bounds(), p.Description)
	}
	if env && len(names) > 0 {
		variable := "HAWSER_" + strings.ToUpper(strings.ReplaceAll(prefix+names[0], ".", "_"))
		fmt.Fprintf(&b, "\nVariables: `%s` and so on.\n", variable)
	}
	return b.String()
}

func TestConfigurationIsDocumented(t *testing.T) {
	const name = "docs/configuration.md"
	config := parse(t, engine.ConfigSchema())
	var keys strings.Builder
	var sections []string
	for section := range config.Properties {
		if section != "transports" {
			sections = append(sections, section)
		}
	}
	slices.Sort(sections)
	for _, section := range sections {
		fmt.Fprintf(&keys, "### %s\n\n%s\n", section, config.Properties[section].table(section+".", true))
	}
	generated(t, name, []part{
		{"keys", strings.TrimSuffix(keys.String(), "\n")},
		{"transports", config.Properties["transports"].Items.table("", false)},
		{"tcp", parse(t, tcptransport.New().Describe().ConfigSchema).table("", false)},
		{"rpcfallback", parse(t, rpctransport.New().Describe().ConfigSchema).table("", false)},
	})
	rdma := parse(t, rdmatransport.New(nil).Describe().ConfigSchema)
	generated(t, "docs/rdma.md", []part{
		{"rdma", rdma.table("", false)},
		{"rdma endpoint", rdma.Properties["endpoint"].table("endpoint.", false)},
	})
}

// part is what is generated of a document, by the name of its place.
type part struct{ name, text string }

func generated(t *testing.T, name string, parts []part) {
	t.Helper()
	doc := read(t, filepath.Join(root, name))
	fresh := doc
	for _, g := range parts {
		re := regexp.MustCompile(`(?s)<!-- generated: ` + g.name + ` -->\n.*?<!-- end -->`)
		if !re.MatchString(fresh) {
			t.Errorf("%s has no place for %s", name, g.name)
		}
		fresh = re.ReplaceAllLiteralString(fresh, "<!-- generated: "+g.name+" -->\n"+g.text+"<!-- end -->")
	}
	settle(t, name, doc, fresh)
}

// Blocks marked as configuration are accepted by the engine.
func TestConfigurationsParse(t *testing.T) {
	n := 0
	for name, doc := range documents(t) {
		for _, b := range blocks(doc) {
			if b.info != "yaml config" {
				continue
			}
			n++
			c, err := engine.ParseConfig([]byte(b.body), name)
			if err == nil {
				_, err = c.Effective()
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, b.body)
			}
		}
	}
	if n < 3 {
		t.Errorf("only %d configurations", n)
	}
}

// The README's table of limits has the code's numbers.
func TestLimitsAreTheCodes(t *testing.T) {
	cfg, err := engine.Config{}.Effective()
	if err != nil {
		t.Fatal(err)
	}
	tcp, rpc := tcptransport.New().Describe().Limits, rpctransport.New().Describe().Limits
	const typed = 52 // header and lengths
	readme := read(t, root+"/README.md")
	for what, want := range map[string]string{
		"name and payload over tcp":                 number(tcp.MaxFrame-typed) + " bytes",
		"name and payload over rpcfallback":         number(cfg.Notification.MaxPayloadBytes) + " bytes",
		"frames without an outcome, per endpoint":   fmt.Sprintf("%s (tcp), %s (rpcfallback)", number(tcp.InflightFrames), number(rpc.InflightFrames)),
		"deadline without one of the caller's":      fmt.Sprintf("%d s", cfg.Notification.DeadlineMS/1000),
		"outbox per peer":                           fmt.Sprintf("%d MiB", cfg.Outbox.Bytes>>20),
		"outbox in all":                             fmt.Sprintf("%d MiB", cfg.Outbox.TotalBytes>>20),
		"receive queue":                             fmt.Sprintf("%s notifications, %d MiB", number(cfg.Receive.Frames), cfg.Receive.Bytes>>20),
		"senders remembered":                        number(cfg.Sessions.Max),
		"crashes before quarantine":                 fmt.Sprintf("%d in %d s", cfg.Plugins.CrashBudget, cfg.Plugins.CrashWindowSecs),
		"a hung plugin is killed":                   fmt.Sprintf("within %d s", (cfg.Plugins.HealthIntervalMS+cfg.Plugins.HealthTimeoutMS)/1000),
		"wait for room before `Notify` gives up":    fmt.Sprintf("%d s", cfg.Notification.SlotWaitMS/1000),
		"first wait for an ack before resending it": fmt.Sprintf("%d s, then adaptive, at least 0.2 s", cfg.Notification.AckTimeoutMS/1000),
	} {
		row := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(what) + ` \| ([^|]*) \|`).FindStringSubmatch(readme)
		if row == nil {
			t.Errorf("the README has no limit %q (%s)", what, want)
		} else if row[1] != want {
			t.Errorf("the README says %q of %q, the code %q", row[1], what, want)
		}
	}
}

// number writes thousands apart.
func number(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
