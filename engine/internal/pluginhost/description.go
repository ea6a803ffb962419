package pluginhost

import (
	"github.com/hawser-transport/hawser/sdk"
)

// Bounds on what a transport may describe and publish: they cross the control
// plane and stand in every peer's memory.
const (
	maxListeners      = 16
	maxSchemaBytes    = 256 << 10
	maxFeatures       = 64
	maxAttributes     = 64
	maxAttributeBytes = 16 << 10
	maxLocalPaths     = 256
)

// checkDescription refuses a description that breaks the contract.
func checkDescription(d sdk.Description) error {
	bad := func(format string, args ...any) error { return sdk.Errorf(sdk.InvalidArgument, format, args...) }
	if d.Contract != sdk.ContractVersion {
		return bad("built with version %d of the transport contract, this engine runs version %d: rebuild it with a matching sdk",
			d.Contract, sdk.ContractVersion)
	}
	if !validName(d.Name) {
		return bad("describes itself as %q: a name has 1 to 32 of [a-z0-9-]", clip(d.Name, 64))
	}
	l := d.Limits
	if l.MaxFrame < 0 || l.MaxFrame > sdk.MaxFrameLimit || l.InflightFrames < 0 || l.InflightBytes < 0 {
		return bad("describes impossible limits (MaxFrame %d, InflightFrames %d, InflightBytes %d)",
			l.MaxFrame, l.InflightFrames, l.InflightBytes)
	}
	if err := d.Move.Check(); err != nil && d.Has(sdk.FeatureMove) {
		return bad("describes impossible limits of memory: %w", err)
	}
	if len(d.Features) > maxFeatures || len(d.ConfigSchema) > maxSchemaBytes || len(d.Listeners) > maxListeners || len(d.Version) > 256 {
		return bad("describes too much (%d features, %d bytes of schema, %d listeners, %d bytes of version)",
			len(d.Features), len(d.ConfigSchema), len(d.Listeners), len(d.Version))
	}
	seen := map[string]bool{}
	for _, s := range d.Listeners {
		if !validName(s.Name) || seen[s.Name] {
			return bad("describes a listener %q: names have 1 to 32 of [a-z0-9-] and occur once", clip(s.Name, 64))
		}
		seen[s.Name] = true
	}
	return nil
}

// checkSetup refuses what cannot be published.
func checkSetup(s sdk.Setup) error {
	total := 0
	for k, v := range s.Attributes {
		total += len(k) + len(v)
	}
	if len(s.Attributes) > maxAttributes || total > maxAttributeBytes || len(s.Paths) > maxLocalPaths {
		return sdk.Errorf(sdk.InvalidArgument,
			"publishes too much (%d attributes of at most %d, %d bytes of at most %d, %d paths of at most %d)",
			len(s.Attributes), maxAttributes, total, maxAttributeBytes, len(s.Paths), maxLocalPaths)
	}
	return nil
}

func validName(s string) bool {
	if len(s) < 1 || len(s) > 32 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}

// clip bounds what a plugin can put into an error.
func clip(s string, n int) string {
	if len(s) > n {
		return s[:n] + "..."
	}
	return s
}
