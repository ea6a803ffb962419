package engine

import "encoding/json"

// ConfigSchema returns a JSON schema (2020-12) of the configuration file, with
// descriptions and defaults, for editors and checks before a roll-out.
func ConfigSchema() json.RawMessage {
	properties := map[string]any{}
	for _, s := range configSections() {
		if s != transportsKey {
			properties[s] = schemaObject(map[string]any{})
		}
	}
	for _, k := range configKeys {
		section := properties[k.section()].(map[string]any)
		section["properties"].(map[string]any)[k.name()] = k.schema()
	}
	properties[transportsKey] = transportsSchema()
	root := schemaObject(properties)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "Hawser engine configuration"
	raw, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		panic(err) // maps of strings and numbers
	}
	return raw
}

// object is a strict object; an empty section may be left without a value.
func schemaObject(properties map[string]any) map[string]any {
	return map[string]any{
		"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false,
	}
}

func (k configKey) schema() map[string]any {
	s := map[string]any{"description": k.doc}
	if k.def != nil {
		s["default"] = k.def
	}
	switch k.field(&Config{}).(type) {
	case *int, **int:
		between := map[string]any{"type": "integer", "minimum": k.min, "maximum": k.max}
		if k.auto {
			s["anyOf"] = []any{map[string]any{"const": -1}, between}
			break
		}
		for name, v := range between {
			s[name] = v
		}
	case *bool, **bool:
		s["type"] = "boolean"
	case *string:
		s["type"], s["maxLength"] = "string", maxConfigText
		if len(k.enum) > 0 {
			s["enum"] = k.enum
		}
	case *[]string:
		s["type"], s["items"] = "array", map[string]any{"type": "string"}
	case *map[string]string:
		s["type"], s["additionalProperties"] = "object", map[string]any{"type": "string"}
	}
	return s
}

func transportsSchema() map[string]any {
	text := map[string]any{"type": "string"}
	kinds := map[string]map[string]any{
		"name":   {"type": "string", "pattern": "^[a-z0-9-]{1,32}$"},
		"plugin": text,
		"sha256": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$"},
		"config": {"type": "object"},
		"env":    {"type": "object", "additionalProperties": text},
		"keys":   {"type": "boolean"},
	}
	properties := map[string]any{}
	for _, k := range transportKeys {
		s := map[string]any{"description": k.doc}
		for name, v := range kinds[k.name] {
			s[name] = v
		}
		properties[k.name] = s
	}
	item := schemaObject(properties)
	item["type"], item["required"] = "object", []string{"name"}
	return map[string]any{
		"description": "Transports in order of preference. Default: rdma, where its plugin is installed and there is a device, and tcp; rpcfallback is added last unless notification.rpc_fallback is false.",
		"type":        "array", "maxItems": maxConfigTransports, "items": item,
	}
}
