package mtls_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// meet makes a connection under TLS and returns what each side has to say.
func meet(t *testing.T, client, server sdk.Keys) (cs, ss net.Conn, clientErr, serverErr error) {
	t.Helper()
	rc, err := mtls.New(client)
	if err != nil {
		t.Fatal(err)
	}
	rs, err := mtls.New(server)
	if err != nil {
		t.Fatal(err)
	}
	x, y := join(t)
	cs, ss = mtls.Client(x, rc, "p", nil), mtls.Server(y, rs, "p", nil)
	done := make(chan error)
	go func() { done <- mtls.Handshake(context.Background(), ss) }()
	if clientErr = mtls.Handshake(context.Background(), cs); clientErr == nil {
		_ = cs.SetReadDeadline(time.Now().Add(10 * time.Second))
		go func() { _, _ = io.WriteString(ss, "x") }() // fails if the server refused
		_, clientErr = cs.Read(make([]byte, 1))
	}
	return cs, ss, clientErr, <-done
}

// signed has an authority sign a key of any kind.
func signed(t *testing.T, parent *x509.Certificate, by crypto.Signer, key crypto.Signer, change func(*x509.Certificate)) (*x509.Certificate, []byte) {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	change(template)
	if parent == nil {
		parent = template
	}
	raw, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

func authority(name string) func(*x509.Certificate) {
	return func(c *x509.Certificate) {
		c.Subject = pkix.Name{CommonName: name}
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	}
}

func secret(t *testing.T, kind string, key crypto.Signer) []byte {
	t.Helper()
	var raw []byte
	var err error
	switch kind {
	case "RSA PRIVATE KEY":
		raw = x509.MarshalPKCS1PrivateKey(key.(*rsa.PrivateKey))
	case "EC PRIVATE KEY":
		raw, err = x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	default:
		raw, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// Keys of every kind, in every form, directly under the authority and through
// an intermediate, with names of every kind: all meet all.
func TestEveryKindOfCertificate(t *testing.T) {
	ec, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ec384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	rs, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	_, ed, _ := ed25519.GenerateKey(rand.Reader)
	rootKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	root, rootPEM := signed(t, nil, rootKey, rootKey, authority("root"))
	_, middleKey, _ := ed25519.GenerateKey(rand.Reader)
	middle, middlePEM := signed(t, root, rootKey, middleKey, authority("middle"))

	spiffe := func(path string) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "prod.example", Path: path}} }
	}
	var all []sdk.Keys
	var identities []string
	for _, c := range []struct {
		kind     string
		key      crypto.Signer
		change   func(*x509.Certificate)
		identity string
	}{
		{"PRIVATE KEY", ec, func(c *x509.Certificate) { c.DNSNames = []string{"B.example", "a.example"} }, `"a.example", "b.example"`},
		{"EC PRIVATE KEY", ec384, func(c *x509.Certificate) { c.Subject.CommonName = "only common" }, `"only common"`},
		{"RSA PRIVATE KEY", rs, func(c *x509.Certificate) {
			c.IPAddresses = []net.IP{net.ParseIP("2001:DB8:0::7"), net.ParseIP("10.0.0.7")}
		}, `"10.0.0.7", "2001:db8::7"`},
		{"PRIVATE KEY", rs, spiffe("/ns/Prefill"), `"spiffe://prod.example/ns/Prefill"`},
		{"PRIVATE KEY", ed, spiffe("/ns/prefill"), `"spiffe://prod.example/ns/prefill"`},
	} {
		_, direct := signed(t, root, rootKey, c.key, c.change)
		_, leaf := signed(t, middle, middleKey, c.key, c.change)
		for _, chain := range [][]byte{direct, append(leaf, middlePEM...)} {
			all = append(all, sdk.Keys{CA: rootPEM, Cert: chain, Key: secret(t, c.kind, c.key)})
			identities = append(identities, c.identity)
		}
	}
	for i, a := range all {
		j := (i + 3) % len(all)
		cs, ss, cerr, serr := meet(t, a, all[j])
		if cerr != nil || serr != nil {
			t.Errorf("%d with %d: %v, %v", i, j, cerr, serr)
			continue
		}
		if got := mtls.Identity(cs); got != identities[j] {
			t.Errorf("%d sees %s, want %s", i, got, identities[j])
		}
		if got := mtls.IdentityAt(ss.RemoteAddr()); got != identities[i] {
			t.Errorf("%d sees %s, want %s", j, got, identities[i])
		}
	}
	// An intermediate that is missing is no chain.
	_, leaf := signed(t, middle, middleKey, ed, spiffe("/x"))
	if _, err := mtls.New(sdk.Keys{CA: rootPEM, Cert: leaf, Key: secret(t, "PRIVATE KEY", ed)}); err == nil || !strings.Contains(err.Error(), "but by \"middle\"") {
		t.Errorf("without its intermediate: %v", err)
	}
}

// security.allow has names of every kind.
func TestAllowedNames(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	peer := ca.Issue("Node-7.example", func(c *x509.Certificate) {
		c.IPAddresses = []net.IP{net.ParseIP("2001:db8::7")}
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: "prod.example", Path: "/Decode"}}
	})
	for name, admitted := range map[string]bool{
		"node-7.EXAMPLE": true, "2001:0DB8::0007": true, "spiffe://prod.example/Decode": true,
		"spiffe://prod.example/decode": false, "2001:db8::8": false, "*.example": false, "example": false,
	} {
		own := ca.Issue("self", nil)
		own.Allow = []string{"somebody", name}
		_, _, cerr, serr := meet(t, peer, own)
		if admitted && (cerr != nil || serr != nil) {
			t.Errorf("%s: %v, %v", name, cerr, serr)
		}
		if !admitted && (!errors.Is(serr, sdk.Refused) || !errors.Is(cerr, sdk.Refused)) {
			t.Errorf("%s: %v, %v", name, cerr, serr)
		}
	}
}

// An identity is the names', whatever else differs, and never nobody's.
func TestIdentities(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	of := func(name string, change func(*x509.Certificate)) string {
		r, err := mtls.New(ca.Issue(name, change))
		if err != nil {
			t.Fatal(err)
		}
		return r.Identity()
	}
	nameless := func(c *x509.Certificate) { c.DNSNames, c.Subject.CommonName = nil, "" }
	many := func(last string) func(*x509.Certificate) {
		return func(c *x509.Certificate) {
			for range 20 {
				c.DNSNames = append(c.DNSNames, strings.Repeat("n", 40)+string(rune('a'+len(c.DNSNames))))
			}
			c.DNSNames = append(c.DNSNames, last)
		}
	}
	if first, renewed := of("alice", nil), of("alice", nil); first != renewed || first != `"alice"` {
		t.Error("a renewed certificate is another's")
	}
	if a, b := of("", nameless), of("", nameless); a == b || !strings.HasPrefix(a, "key:") {
		t.Errorf("without names: %s and %s", a, b)
	}
	if a, b := of("a", many("zzzy")), of("a", many("zzzz")); a == b || len(a) > 400 || len(a) < 256 {
		t.Errorf("many names: %s and %s", a, b)
	}
	if quoted := of("a\", \"b", func(c *x509.Certificate) { c.DNSNames = nil }); quoted == of("a", func(c *x509.Certificate) { c.DNSNames = append(c.DNSNames, "b") }) {
		t.Errorf("a name looks like two: %s", quoted)
	}
}
