// Package mtls is mutual TLS as the control plane and the stream transports
// do it: version 1.3 only, one certificate authority, a certificate on either
// side, an optional list of admitted names, and keys that can be replaced
// while connections are made. Addresses are not compared with certificates:
// who the peers are is what the authority vouches for, and [Identity] is how
// one of them is known again on another connection.
//
// A side with keys and one without notice each other at the first bytes:
// [Client] and [Server] then fail with [sdk.Refused] and say what is wrong.
package mtls

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Fault says which part of the keys is wrong, and how.
type Fault struct {
	// Part is "ca", "cert" or "key".
	Part string
	Err  error
}

// Error implements error.
func (f *Fault) Error() string { return f.Part + ": " + f.Err.Error() }

// Unwrap returns the cause.
func (f *Fault) Unwrap() error { return f.Err }

func fault(part, format string, args ...any) error {
	return &Fault{part, sdk.Errorf(sdk.InvalidArgument, format, args...)}
}

// Keyring holds keys that are ready for use and can be replaced.
type Keyring struct{ set atomic.Pointer[set] }

// set is immutable.
type set struct {
	roots *x509.CertPool
	own   tls.Certificate
	allow map[string]bool // folded; empty admits all
}

// New makes a keyring, or returns a [Fault].
func New(k sdk.Keys) (*Keyring, error) {
	r := &Keyring{}
	return r, r.Set(k)
}

// Ring is what a transport makes of [sdk.Config.Keys]: a keyring, or nil where
// there are no keys. Its error has code InvalidArgument.
func Ring(k *sdk.Keys) (*Keyring, error) {
	if k == nil {
		return nil, nil
	}
	r, err := New(*k)
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "keys: %w", err)
	}
	return r, nil
}

// Replace is what a transport does in [sdk.Keyed]: it is Set, and refuses where
// there is no keyring, since TLS is not turned on while connections exist.
func (r *Keyring) Replace(k sdk.Keys) error {
	if r == nil {
		return sdk.Errorf(sdk.InvalidArgument, "keys: the transport was configured without any")
	}
	if err := r.Set(k); err != nil {
		return sdk.Errorf(sdk.InvalidArgument, "keys: %w", err)
	}
	return nil
}

// Set replaces the keys for the connections to come. On error, a [Fault], the
// old ones stay.
func (r *Keyring) Set(k sdk.Keys) error {
	s, err := parse(k, time.Now())
	if err != nil {
		return err
	}
	r.set.Store(s)
	return nil
}

// Names returns the names that this node's certificate bears.
func (r *Keyring) Names() []string { return names(r.set.Load().own.Leaf) }

// NotAfter is when this node's certificate expires.
func (r *Keyring) NotAfter() time.Time { return r.set.Load().own.Leaf.NotAfter }

func parse(k sdk.Keys, now time.Time) (*set, error) {
	s := &set{roots: x509.NewCertPool(), allow: allowed(k.Allow)}
	n := 0
	for rest := k.CA; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fault("ca", "holds a %s: only the authority's certificates belong there", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil:
			return nil, fault("ca", "a certificate cannot be read: %w", err)
		case !c.IsCA:
			return nil, fault("ca", "%s is not the certificate of an authority", title(c))
		}
		s.roots.AddCert(c)
		n++
	}
	if n == 0 {
		return nil, fault("ca", "holds no certificate in PEM")
	}
	chain, err := certificates(k.Cert)
	if err != nil {
		return nil, err
	}
	if block, _ := pem.Decode(k.Key); block == nil {
		return nil, fault("key", "holds no private key in PEM")
	}
	if s.own, err = tls.X509KeyPair(k.Cert, k.Key); err != nil {
		return nil, keyFault(err)
	}
	s.own.Leaf = chain[0]
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if err := s.verify(chain, use, now); err != nil {
			return nil, fault("cert", "%w", err)
		}
	}
	return s, nil
}

func certificates(b []byte) (chain []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue // X509KeyPair skips it as well
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fault("cert", "cannot be read: %w", err)
		}
		chain = append(chain, c)
	}
	if len(chain) == 0 {
		return nil, fault("cert", "holds no certificate in PEM")
	}
	return chain, nil
}

func keyFault(err error) error {
	if strings.Contains(err.Error(), "does not match") {
		return fault("key", "does not match the certificate")
	}
	// The text names the kind of key at most.
	return fault("key", "cannot be used: %w", err)
}

// verify says in one sentence what is wrong with a chain, if anything.
func (s *set) verify(chain []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) error {
	leaf := chain[0]
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%s expired at %s: renew it, or set the clock", title(leaf), leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%s is valid from %s only: wait, or set the clock", title(leaf), leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	o := x509.VerifyOptions{Roots: s.roots, Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}}
	for _, c := range chain[1:] {
		o.Intermediates.AddCert(c)
	}
	_, err := leaf.Verify(o)
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("%s is not signed by the configured CA, but by %.64q: security.ca must hold the same authority on both sides, "+
			"and security.cert the intermediates, if any, behind the certificate", title(leaf), leaf.Issuer.CommonName)
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return fmt.Errorf("%s is not for both serverAuth and clientAuth, and every node is both", title(leaf))
	}
	return fmt.Errorf("%s: %w", title(leaf), err)
}

// admit is what either side demands of the other's certificate.
func (r *Keyring) admit(use x509.ExtKeyUsage) func(tls.ConnectionState) error {
	return func(cs tls.ConnectionState) error {
		s := r.set.Load()
		if len(cs.PeerCertificates) == 0 {
			return sdk.Errorf(sdk.Refused, "the peer shows no certificate")
		}
		leaf := cs.PeerCertificates[0]
		if err := s.verify(cs.PeerCertificates, use, time.Now()); err != nil {
			return sdk.Errorf(sdk.Refused, "the peer's certificate: %w", err)
		}
		if len(s.allow) == 0 {
			return nil
		}
		if slices.ContainsFunc(names(leaf), func(n string) bool { return s.allow[folded(n)] }) {
			return nil
		}
		return sdk.Errorf(sdk.Refused, "the peer's certificate: %s bears no name that security.allow lists: add one there, or leave the peer out", title(leaf))
	}
}

// config is one side's; nothing in it depends on the keys of the moment.
func (r *Keyring) config(protocol string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		NextProtos: []string{protocol},
		// Each connection is checked against the keys of its own time.
		SessionTicketsDisabled: true,
		// A record of full size is one write.
		DynamicRecordSizingDisabled: true,
		GetCertificate:              func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &r.set.Load().own, nil },
		GetClientCertificate:        func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &r.set.Load().own, nil },
	}
}

func (r *Keyring) server(protocol string) *tls.Config {
	c := r.config(protocol)
	c.ClientAuth = tls.RequireAnyClientCert
	c.VerifyConnection = r.admit(x509.ExtKeyUsageClientAuth)
	return c
}

func (r *Keyring) client(protocol string) *tls.Config {
	c := r.config(protocol)
	// The chain is verified by VerifyConnection, against the CA of the
	// moment; the address is not what certificates are about.
	c.InsecureSkipVerify = true
	c.VerifyConnection = r.admit(x509.ExtKeyUsageServerAuth)
	return c
}

// title names a certificate in messages.
func title(c *x509.Certificate) string {
	const most = 3
	list := names(c)
	if len(list) == 0 {
		return fmt.Sprintf("the certificate without a name, serial %x,", c.SerialNumber)
	}
	if len(list) > most {
		list = append(list[:most:most], "...")
	}
	text := strings.Join(list, ", ")
	if len(text) > 256 {
		text = text[:256] + "..."
	}
	return fmt.Sprintf("the certificate of %q", text)
}
