package sdk

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
)

// Keys is what a transport proves its own identity with and checks its peers'
// by. A transport gets them in [Config.Keys] only if it lists [FeatureKeys]
// and the user lets it have them. Package mtls makes TLS of them. No verb of
// package fmt, no log and no JSON shows the private key.
type Keys struct {
	// CA holds the certificates, in PEM, of the authority that every peer's
	// certificate must be signed by.
	CA []byte
	// Cert is this node's certificate in PEM, with its intermediates if any.
	Cert []byte
	// Key is the certificate's private key in PEM.
	Key []byte `json:"-"`
	// Allow lists the names of the peers that are admitted, of which a peer's
	// certificate must bear one, as a DNS name or as its common name. Empty
	// means every peer that the CA has signed.
	Allow []string
}

// Keyed is the ability to secure connections with [Config.Keys]. A transport
// that lists [FeatureKeys] and has keys makes and accepts no connection without
// them.
type Keyed interface {
	// SetKeys replaces the keys: connections that are made or accepted after
	// it has returned use the new ones, and those that exist go on. On error
	// the old ones stay.
	SetKeys(ctx context.Context, k Keys) error
}

// Equal reports whether two sets of keys are the same.
func (k Keys) Equal(o Keys) bool {
	return bytes.Equal(k.CA, o.CA) && bytes.Equal(k.Cert, o.Cert) && bytes.Equal(k.Key, o.Key) &&
		slices.Equal(k.Allow, o.Allow)
}

// Format implements fmt.Formatter for every verb.
func (k Keys) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, "sdk.Keys(hidden)") }

// LogValue implements slog.LogValuer.
func (k Keys) LogValue() slog.Value { return slog.StringValue("sdk.Keys(hidden)") }
