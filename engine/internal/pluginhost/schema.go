package pluginhost

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"github.com/hawser-transport/hawser/sdk"
)

// maxSchemaFaults bounds how many faults one error lists.
const maxSchemaFaults = 8

// CheckSettings checks a user's settings against a transport's schema. The
// error names the transport, the property, and what is wrong with it.
func CheckSettings(transport string, schema, settings json.RawMessage) error {
	fault := func(format string, args ...any) error {
		return sdk.Errorf(sdk.InvalidArgument, "transport %s: "+format, append([]any{transport}, args...)...)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(orEmpty(settings)))
	if err != nil {
		return fault("config is not JSON: %v", err)
	}
	object, ok := value.(map[string]any)
	if !ok {
		return fault("config must be an object")
	}
	if len(schema) == 0 {
		for key := range object {
			return fault("config.%s: the transport takes no settings", key)
		}
		return nil
	}
	compiled, err := compileSchema(schema)
	if err != nil {
		return fault("the plugin's config schema cannot be used (tell its author): %v", err)
	}
	err = compiled.Validate(value)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &invalid):
		return fault("%s", strings.Join(faults(invalid), "; "))
	default:
		return fault("%v", err)
	}
}

// orEmpty returns the settings as a JSON object's text.
func orEmpty(settings json.RawMessage) json.RawMessage {
	if len(bytes.TrimSpace(settings)) == 0 {
		return json.RawMessage("{}")
	}
	return settings
}

// compileSchema compiles a plugin's schema. The schema is a plugin's: it may
// not make the host read files or crash.
func compileSchema(schema json.RawMessage) (_ *jsonschema.Schema, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v", r)
		}
	}()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, err
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(noLoader{})
	const name = "plugin:config"
	if err := c.AddResource(name, doc); err != nil {
		return nil, err
	}
	return c.Compile(name)
}

// noLoader refuses references to anything outside the schema.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("a schema must not refer to %s", clip(url, 200))
}

// faults lists the innermost faults as "config.a.b: what is wrong".
func faults(e *jsonschema.ValidationError) []string {
	p := message.NewPrinter(language.English)
	var list []string
	var walk func(*jsonschema.ValidationError)
	walk = func(e *jsonschema.ValidationError) {
		if len(e.Causes) == 0 {
			at := strings.Join(append([]string{"config"}, e.InstanceLocation...), ".")
			list = append(list, at+": "+e.ErrorKind.LocalizedString(p))
			return
		}
		for _, c := range e.Causes {
			if len(list) >= maxSchemaFaults {
				return
			}
			walk(c)
		}
	}
	walk(e)
	return list
}
