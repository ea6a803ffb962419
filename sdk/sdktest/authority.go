package sdktest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hawser-transport/hawser/sdk"
)

// Authority is a certificate authority of a test, for transports that list
// [sdk.FeatureKeys] and for engines with TLS. It keeps nothing on disk.
type Authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// NewAuthority makes an authority.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	a := &Authority{t: t, key: newKey(t)}
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: name}, SerialNumber: serial(t),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	raw, err := x509.CreateCertificate(rand.Reader, &template, &template, &a.key.PublicKey, a.key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(raw)
	}
	if err != nil {
		t.Fatalf("authority %s: %v", name, err)
	}
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	return a
}

// Issue makes keys for a node of this name. change, if not nil, alters the
// certificate before it is signed.
func (a *Authority) Issue(name string, change func(*x509.Certificate)) sdk.Keys {
	a.t.Helper()
	key := newKey(a.t)
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: name}, DNSNames: []string{name}, SerialNumber: serial(a.t),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if change != nil {
		change(&template)
	}
	raw, err := x509.CreateCertificate(rand.Reader, &template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		a.t.Fatalf("certificate of %s: %v", name, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatalf("key of %s: %v", name, err)
	}
	return sdk.Keys{
		CA:   a.pem,
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}
}

// WriteKeys writes keys to ca.pem, cert.pem and key.pem in a directory, each of
// them in one step, as certificate managers do.
func WriteKeys(t testing.TB, dir string, k sdk.Keys) (ca, cert, key string) {
	t.Helper()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("ca.pem", k.CA), write("cert.pem", k.Cert), write("key.pem", k.Key)
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
