package engine

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-transport/hawser/engine/internal/nearest"
)

// envPrefix begins the variables that override keys: HAWSER_NOTIFICATION_PROTO
// for notification.proto.
const envPrefix = "HAWSER_"

// otherVariables are documented and override no key. Names that begin with
// HAWSER_TEST_ belong to tests.
var otherVariables = []string{"HAWSER_CONFIG", "HAWSER_PLUGIN_PATH", "HAWSER_CUDA_SIM"}

// serviceVariable matches what Kubernetes sets in every container beside a
// service whose name begins with hawser.
var serviceVariable = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|^HAWSER_(?:[A-Z0-9_]+_)?PORT(_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?$`)

// environment applies overrides. A variable that begins like one but names no
// key is an error, since a misspelt override would otherwise do nothing.
func (r *configReader) environment(environ []string) {
	byVariable := map[string]configKey{}
	var names []string
	for _, k := range configKeys {
		byVariable[k.variable()] = k
		names = append(names, k.variable())
	}
	for _, e := range slices.Sorted(slices.Values(environ)) {
		name, value, _ := strings.Cut(e, "=")
		at := configOrigin{source: name}
		k, known := byVariable[name]
		switch {
		case known:
			if text := r.override(k, value); text != "" {
				r.fail(at, k.path, "%s", text)
			} else {
				r.loaded.origins[k.path] = at
			}
		case !strings.HasPrefix(name, envPrefix), slices.Contains(otherVariables, name),
			strings.HasPrefix(name, "HAWSER_TEST_"), serviceVariable.MatchString(name):
		case name == envPrefix+"TRANSPORTS" || strings.HasPrefix(name, envPrefix+"TRANSPORTS_"):
			r.fail(at, transportsKey, "the list of transports cannot be set by a variable; write it in the file")
		default:
			hint := nearest.Hint(name, names)
			if hint == "" {
				hint = "; what a plugin is to find in its environment stands in its transport's env"
			}
			r.fail(at, "", "overrides no key%s", hint)
		}
	}
}

// override stores a variable's value in a key and says what is wrong with it.
func (r *configReader) override(k configKey, value string) string {
	switch p := k.field(&r.loaded.Config).(type) {
	case *int, **int:
		v, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil {
			return fmt.Sprintf("must be a whole number, %s, not %q", k.accepted(), value)
		}
		if text := k.checkInt(v); text != "" {
			return text
		}
		setInt(p, int(v))
	case *bool, **bool:
		switch strings.TrimSpace(value) {
		case "true", "1":
			setBool(p, true)
		case "false", "0":
			setBool(p, false)
		default:
			return fmt.Sprintf("must be true or false, not %q", value)
		}
	case *string:
		*p = value
		return k.checkString(value)
	case *[]string:
		*p = nil
		for _, s := range strings.Split(value, ",") {
			if s = strings.TrimSpace(s); s != "" {
				*p = append(*p, s)
			}
		}
	case *map[string]string:
		*p = map[string]string{}
		for _, pair := range strings.Split(value, ",") {
			if pair = strings.TrimSpace(pair); pair == "" {
				continue
			}
			name, v, ok := strings.Cut(pair, "=")
			if !ok {
				return fmt.Sprintf("must be name=value,name=value, not %q", value)
			}
			(*p)[name] = v
		}
	}
	return ""
}
