package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

const direction = `{
  "type": "object", "additionalProperties": false,
  "properties": {
    "drop": {"type": "number", "minimum": 0, "maximum": 1, "default": 0, "description": "Probability that a frame is lost."},
    "double": {"type": "number", "minimum": 0, "maximum": 1, "default": 0, "description": "Probability that it is carried twice."},
    "delay": {"type": "number", "minimum": 0, "maximum": 1, "default": 0, "description": "Probability that it waits, and what comes after it too."},
    "reorder": {"type": "number", "minimum": 0, "maximum": 1, "default": 0, "description": "Probability that it waits alone, so that others overtake it."}
  }
}`

const faultsSchema = `{
  "type": "object", "additionalProperties": false,
  "description": "What goes wrong from the start.",
  "properties": {
    "seed": {"type": "integer", "minimum": 0, "default": 0, "description": "Makes the random choices."},
    "control": {"type": "string", "maxLength": 100, "description": "Path of a unix socket at which faults can be set and counts read. The plugin makes it, anew after each start."},
    "send": ` + direction + `,
    "receive": ` + direction + `,
    "drop_is_unknown": {"type": "boolean", "default": false, "description": "A frame dropped while sending has the outcome unknown and not done."},
    "not_posted": {"type": "number", "minimum": 0, "maximum": 1, "default": 0, "description": "Probability that a frame that was taken is not carried, and said to be not posted."},
    "unknown": {"type": "number", "minimum": 0, "maximum": 1, "default": 0, "description": "Probability that a frame's outcome is unknown; half of these are carried."},
    "max_delay_ms": {"type": "integer", "minimum": 1, "maximum": 60000, "default": 20, "description": "Bounds each delay."},
    "crash_after": {"type": "integer", "minimum": 0, "default": 0, "description": "The process exits after so many frames; 0 is never."},
    "hang_after": {"type": "integer", "minimum": 0, "default": 0, "description": "Everything stops after so many frames; 0 is never."}
  }
}`

// plugin is a transport with faults. Its settings are those of the transport
// and one more, faults.
type plugin struct {
	*sdktest.FaultyTransport
	inner   sdk.Transport
	control *control // nil: none was asked for
}

func newPlugin(inner sdk.Transport) *plugin {
	// The wrapper takes its seed before there are settings.
	return &plugin{FaultyTransport: sdktest.Faulty(inner, 0), inner: inner}
}

// Describe implements [sdk.Transport]: the wrapped transport's description,
// with one more setting.
func (p *plugin) Describe() sdk.Description {
	d := p.inner.Describe()
	var schema map[string]json.RawMessage
	var properties map[string]json.RawMessage
	if json.Unmarshal(d.ConfigSchema, &schema) != nil || json.Unmarshal(schema["properties"], &properties) != nil {
		return d // its author's mistake, and the engine says so
	}
	properties["faults"] = json.RawMessage(faultsSchema)
	schema["title"] = json.RawMessage(`"` + d.Name + ` transport with faults"`)
	schema["properties"], _ = json.Marshal(properties)
	d.ConfigSchema, _ = json.Marshal(schema)
	d.Version += "-faulty"
	return d
}

// Configure implements [sdk.Transport].
func (p *plugin) Configure(ctx context.Context, cfg sdk.Config) (sdk.Setup, error) {
	var all map[string]json.RawMessage
	if err := json.Unmarshal(cfg.Settings, &all); err != nil {
		return sdk.Setup{}, sdk.Errorf(sdk.InvalidArgument, "settings: %w", err)
	}
	s, err := parseSettings(all["faults"])
	if err != nil {
		return sdk.Setup{}, err
	}
	delete(all, "faults")
	if cfg.Settings, err = json.Marshal(all); err != nil {
		return sdk.Setup{}, err
	}
	p.FaultyTransport.Seed(s.Seed)
	p.FaultyTransport.OnCrash(func() { os.Exit(3) })
	p.FaultyTransport.Set(s.faults())
	setup, err := p.FaultyTransport.Configure(ctx, cfg)
	if err == nil && s.Control != "" {
		p.control, err = listen(s.Control, p.FaultyTransport)
	}
	return setup, err
}

// Close implements [sdk.Transport].
func (p *plugin) Close(ctx context.Context) error {
	if p.control != nil {
		p.control.close()
	}
	return p.FaultyTransport.Close(ctx)
}

// parseSettings reads the setting faults strictly.
func parseSettings(raw json.RawMessage) (s settings, err error) {
	if len(raw) == 0 {
		return s, nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, sdk.Errorf(sdk.InvalidArgument, "settings: faults: %w", err)
	}
	return s, s.check()
}
