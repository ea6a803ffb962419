package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/hawser-transport/hawser/engine/internal/nearest"
	"github.com/hawser-transport/hawser/sdk"
)

// LoadConfig reads a YAML file and applies the overrides of the process's
// environment. Nothing is guessed: an unknown key, a wrong type or an
// inconsistent value is a [ConfigErrors] with file, line and column.
//
// The result holds what was written; an engine fills in the defaults, and
// [Config.Effective] shows them.
func LoadConfig(path string) (Config, error) {
	l, err := ReadConfig(path, os.Environ())
	return l.Config, err
}

// ParseConfig is [LoadConfig] for a file in memory, without environment. The
// name stands for the file in errors.
func ParseConfig(data []byte, name string) (Config, error) {
	l, err := readConfig(data, name, nil)
	return l.Config, err
}

// LoadedConfig is a configuration that knows where each value comes from.
type LoadedConfig struct {
	Config  Config
	origins map[string]configOrigin
}

// configOrigin is a place in a file, or a variable.
type configOrigin struct {
	source       string
	line, column int
}

// ReadConfig is [LoadConfig] with an environment of the caller's, as
// "NAME=value", and it keeps where each value comes from. An empty path means
// no file.
func ReadConfig(path string, environ []string) (LoadedConfig, error) {
	if path == "" {
		return readConfig(nil, "", environ)
	}
	f, err := os.Open(path)
	if err != nil {
		return LoadedConfig{}, sdk.Errorf(sdk.InvalidArgument, "configuration: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return LoadedConfig{}, sdk.Errorf(sdk.InvalidArgument, "configuration: %w", err)
	}
	return readConfig(data, path, environ)
}

func readConfig(data []byte, name string, environ []string) (LoadedConfig, error) {
	r := configReader{name: name, loaded: LoadedConfig{origins: map[string]configOrigin{}}}
	r.file(data)
	r.environment(environ)
	if len(r.errors) == 0 {
		r.check()
	}
	r.errors.sort()
	if err := r.errors.asError(); err != nil {
		return LoadedConfig{}, err
	}
	return r.loaded, nil
}

const (
	maxConfigBytes = 256 << 10
	// maxConfigDepth bounds the YAML parser's recursion, maxConfigLine the
	// length of a line, in which the parser's time is quadratic.
	maxConfigDepth = 100
	maxConfigLine  = 8 << 10
)

// configReader collects values, their origins, and faults.
type configReader struct {
	name   string
	loaded LoadedConfig
	errors ConfigErrors
}

func (r *configReader) fail(at configOrigin, key, format string, args ...any) {
	r.errors = append(r.errors, &ConfigError{
		Source: at.source, Line: at.line, Column: at.column, Key: key,
		Message: fmt.Sprintf(format, args...), Code: sdk.InvalidArgument,
	})
}

// check reports what only the whole shows, at the place of the first key
// that somebody has set.
func (r *configReader) check() {
	for _, f := range r.loaded.Config.withDefaults().faults() {
		at := configOrigin{source: r.name}
		for _, key := range f.keys {
			if o, ok := r.loaded.origins[key]; ok {
				at = o
				break
			}
		}
		r.fail(at, f.keys[0], "%s", f.text)
		r.errors[len(r.errors)-1].Code = f.code
	}
}

func (r *configReader) at(n ast.Node) configOrigin {
	if n == nil {
		return configOrigin{source: r.name}
	}
	return r.atToken(n.GetToken())
}

func (r *configReader) atToken(t *token.Token) configOrigin {
	o := configOrigin{source: r.name}
	if t != nil && t.Position != nil {
		o.line, o.column = t.Position.Line, t.Position.Column
	}
	return o
}

func (r *configReader) file(data []byte) {
	if len(data) > maxConfigBytes {
		r.fail(configOrigin{source: r.name}, "", "the file has more than %d bytes", maxConfigBytes)
		return
	}
	f, err := parseYAML(data)
	if err != nil {
		at, text := configOrigin{source: r.name}, err.Error()
		var y yaml.Error
		if errors.As(err, &y) {
			at, text = r.atToken(y.GetToken()), y.GetMessage()
		}
		r.fail(at, "", "%s", text)
		return
	}
	for i, doc := range f.Docs {
		switch {
		case doc == nil || doc.Body == nil:
		case i > 0:
			r.fail(r.at(doc.Body), "", "the file has more than one document")
		default:
			r.root(doc.Body)
		}
	}
}

// parseYAML guards the parser, which is not ours, against input that would
// exhaust the stack or take minutes, and the caller against its panics.
func parseYAML(data []byte) (f *ast.File, err error) {
	for line := range bytes.Lines(data) {
		if len(line) > maxConfigLine {
			return nil, fmt.Errorf("a line has more than %d bytes", maxConfigLine)
		}
	}
	depth, deepest := 0, 0
	line := 0 // block indicators and indentation at the line's start
	start := true
	for _, b := range data {
		switch {
		case b == '\n':
			line, start = 0, true
			continue
		case b == '[' || b == '{':
			depth++
		case b == ']' || b == '}':
			depth = max(depth-1, 0)
		}
		if start && (b == ' ' || b == '-' || b == '?' || b == '\t') {
			line++
		} else {
			start = false
		}
		deepest = max(deepest, depth, line/2)
	}
	if deepest > maxConfigDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxConfigDepth)
	}
	defer func() {
		if p := recover(); p != nil {
			f, err = nil, fmt.Errorf("not readable as YAML (%v)", p)
		}
	}()
	return parser.ParseBytes(data, 0)
}

func (r *configReader) root(n ast.Node) {
	entries, ok := r.mapping(n, "", "the file")
	if !ok {
		return
	}
	for _, e := range entries {
		switch {
		case e.key == transportsKey:
			r.transports(e)
		case slices.Contains(configSections(), e.key):
			r.section(e)
		default:
			r.fail(e.at, e.key, "unknown key%s", nearest.Hint(e.key, configSections()))
		}
	}
}

func (r *configReader) section(e configEntry) {
	entries, ok := r.mapping(e.value, e.key, e.key)
	if !ok {
		return
	}
	for _, sub := range entries {
		path := e.key + "." + sub.key
		k, ok := findConfigKey(path)
		if !ok {
			var names []string
			for _, k := range configKeys {
				if k.section() == e.key {
					names = append(names, k.name())
				}
			}
			r.fail(sub.at, path, "unknown key%s", nearest.Hint(sub.key, names))
			continue
		}
		if r.set(k, sub.value) {
			r.loaded.origins[path] = sub.at
		}
	}
}

// set stores a value; it reports whether the value is of the key's kind.
func (r *configReader) set(k configKey, n ast.Node) bool {
	at, text := r.at(n), ""
	c := &r.loaded.Config
	switch p := k.field(c).(type) {
	case *int, **int:
		var v int64
		if v, text = yamlInt(n); text == "" {
			if text = k.checkInt(v); text == "" {
				setInt(p, int(v))
			}
		}
	case *bool, **bool:
		if b, ok := yamlNode(n).(*ast.BoolNode); ok {
			setBool(p, b.Value)
		} else {
			text = "must be true or false, not " + yamlKind(n)
		}
	case *string:
		if *p, text = yamlString(n); text == "" {
			text = k.checkString(*p)
		}
	case *[]string:
		list, ok := yamlNode(n).(*ast.SequenceNode)
		if !ok {
			text = "must be a list of strings, not " + yamlKind(n)
			break
		}
		for i, v := range list.Values {
			s, wrong := yamlString(v)
			if wrong != "" {
				r.fail(r.at(v), fmt.Sprintf("%s[%d]", k.path, i), "%s", wrong)
			}
			*p = append(*p, s)
		}
	case *map[string]string:
		*p = r.stringMap(k.path, n)
	}
	if text != "" {
		r.fail(at, k.path, "%s", text)
	}
	return text == ""
}

func setInt(p any, v int) {
	switch p := p.(type) {
	case *int:
		*p = v
	case **int:
		*p = &v
	}
}

func setBool(p any, v bool) {
	switch p := p.(type) {
	case *bool:
		*p = v
	case **bool:
		*p = &v
	}
}

func (r *configReader) stringMap(path string, n ast.Node) map[string]string {
	entries, ok := r.mapping(n, path, path)
	if !ok {
		return nil
	}
	out := map[string]string{}
	for _, e := range entries {
		key := path + "." + e.key
		s, wrong := yamlString(e.value)
		if wrong != "" {
			r.fail(r.at(e.value), key, "%s", wrong)
		}
		out[e.key] = s
		r.loaded.origins[key] = e.at
	}
	return out
}

func (r *configReader) transports(e configEntry) {
	list, ok := yamlNode(e.value).(*ast.SequenceNode)
	if !ok {
		r.fail(r.at(e.value), transportsKey, "must be a list, not %s", yamlKind(e.value))
		return
	}
	r.loaded.origins[transportsKey] = e.at
	out := []TransportConfig{}
	for i, n := range list.Values {
		out = append(out, r.transport(fmt.Sprintf("%s[%d]", transportsKey, i), n))
	}
	r.loaded.Config.Transports = out
}

func (r *configReader) transport(path string, n ast.Node) TransportConfig {
	var t TransportConfig
	r.loaded.origins[path] = r.at(n)
	entries, ok := r.mapping(n, path, "a transport")
	if !ok {
		return t
	}
	for _, e := range entries {
		key, wrong := path+"."+e.key, ""
		switch e.key {
		case "name":
			t.Name, wrong = yamlString(e.value)
		case "plugin":
			t.Plugin, wrong = yamlString(e.value)
		case "sha256":
			t.SHA256, wrong = yamlString(e.value)
		case "env":
			t.Env = r.stringMap(key, e.value)
		case "keys":
			if b, ok := yamlNode(e.value).(*ast.BoolNode); ok {
				t.Keys = &b.Value
			} else {
				wrong = "must be true or false, not " + yamlKind(e.value)
			}
		case "config":
			t.Config = r.settings(key, e.value)
		default:
			var names []string
			for _, k := range transportKeys {
				names = append(names, k.name)
			}
			r.fail(e.at, key, "unknown key%s", nearest.Hint(e.key, names))
			continue
		}
		if wrong != "" {
			r.fail(r.at(e.value), key, "%s", wrong)
		}
		r.loaded.origins[key] = e.at
	}
	return t
}

// settings turns a transport's own settings, whose keys only its plugin
// knows, into JSON.
func (r *configReader) settings(path string, n ast.Node) json.RawMessage {
	if _, ok := r.mapping(n, path, path); !ok {
		return nil
	}
	v := r.plain(path, n)
	raw, err := json.Marshal(v)
	if err != nil {
		r.fail(r.at(n), path, "cannot be JSON: %v", err)
		return nil
	}
	return raw
}

func (r *configReader) plain(path string, n ast.Node) any {
	switch n := yamlNode(n).(type) {
	case nil, *ast.NullNode:
		return nil
	case *ast.BoolNode:
		return n.Value
	case *ast.IntegerNode:
		return n.Value
	case *ast.FloatNode:
		return n.Value
	case *ast.StringNode, *ast.LiteralNode:
		s, _ := yamlString(n)
		return s
	case *ast.SequenceNode:
		out := make([]any, len(n.Values))
		for i, v := range n.Values {
			out[i] = r.plain(fmt.Sprintf("%s[%d]", path, i), v)
		}
		return out
	case *ast.MappingNode, *ast.MappingValueNode:
		out := map[string]any{}
		entries, _ := r.mapping(n, path, path)
		for _, e := range entries {
			r.loaded.origins[path+"."+e.key] = e.at
			out[e.key] = r.plain(path+"."+e.key, e.value)
		}
		return out
	default:
		r.fail(r.at(n), path, "%s is not supported", yamlKind(n))
		return nil
	}
}

// configEntry is one key of a mapping.
type configEntry struct {
	key   string
	at    configOrigin
	value ast.Node
}

// mapping returns a mapping's entries; a missing value is an empty one.
func (r *configReader) mapping(n ast.Node, path, what string) ([]configEntry, bool) {
	var values []*ast.MappingValueNode
	switch n := yamlNode(n).(type) {
	case nil, *ast.NullNode:
		return nil, true
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		r.fail(r.at(n), path, "%s must be a mapping, not %s", what, yamlKind(n))
		return nil, false
	}
	seen := map[string]bool{}
	var out []configEntry
	for _, v := range values {
		if v == nil {
			continue
		}
		key, wrong := yamlString(v.Key)
		at := r.at(v.Key)
		if wrong != "" {
			r.fail(at, path, "a key %s", wrong)
			continue
		}
		if seen[key] {
			r.fail(at, strings.TrimPrefix(path+"."+key, "."), "is given twice")
			continue
		}
		seen[key] = true
		out = append(out, configEntry{key, at, v.Value})
	}
	return out, true
}

// unwrap looks through nodes that only group; a nil pointer in the interface
// becomes nil.
func yamlNode(n ast.Node) ast.Node {
	switch v := n.(type) {
	case *ast.MappingKeyNode:
		if v == nil {
			return nil
		}
		return yamlNode(v.Value)
	case *ast.MappingValueNode:
		if v == nil {
			return nil
		}
	case *ast.LiteralNode:
		if v == nil || v.Value == nil {
			return nil
		}
	}
	return n
}

func yamlInt(n ast.Node) (int64, string) {
	if i, ok := yamlNode(n).(*ast.IntegerNode); ok {
		switch v := i.Value.(type) {
		case int64:
			return v, ""
		case uint64:
			if v <= math.MaxInt64 {
				return int64(v), ""
			}
			return 0, "is too large"
		case int:
			return int64(v), ""
		}
	}
	return 0, "must be a whole number, not " + notWhole(n)
}

// notWhole says what stands where a whole number has to.
func notWhole(n ast.Node) string {
	kind, text := yamlKind(n), ""
	switch v := yamlNode(n).(type) {
	case *ast.FloatNode:
		text = v.GetToken().Value
	case *ast.StringNode:
		text = v.Value
	}
	if len(text) > 40 {
		return kind
	}
	plain := yamlNode(n) != nil && yamlNode(n).GetToken().Type == token.StringType
	if _, err := time.ParseDuration(text); err == nil && plain {
		return "the duration " + text + "; write milliseconds, or seconds where the key ends in _secs, without a unit"
	}
	digits := strings.TrimLeft(text, "+-")
	if _, err := strconv.ParseInt(digits, 10, 64); errors.Is(err, strconv.ErrRange) {
		return text + ", which is too large"
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil && (plain || kind == "a fraction") {
		return text + "; write all its digits, without a point or an exponent"
	}
	return kind
}

func yamlString(n ast.Node) (string, string) {
	switch n := yamlNode(n).(type) {
	case *ast.StringNode:
		return n.Value, ""
	case *ast.LiteralNode:
		return n.Value.Value, ""
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return "", "must be a string, not " + yamlKind(n) + "; put it in quotes"
	default:
		return "", "must be a string, not " + yamlKind(n)
	}
}

// kindName says what a node is, for people.
func yamlKind(n ast.Node) string {
	switch yamlNode(n).(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.BoolNode:
		return "true or false"
	case *ast.IntegerNode:
		return "a whole number"
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		return "a fraction"
	case *ast.StringNode, *ast.LiteralNode:
		return "a string"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.AliasNode, *ast.AnchorNode, *ast.MergeKeyNode:
		return "an anchor or alias"
	case *ast.TagNode:
		return "a tagged value"
	default:
		return "something else"
	}
}
