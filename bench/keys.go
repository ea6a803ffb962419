package main

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
	"time"

	"github.com/hawser-transport/hawser/engine"
)

// makeKeys writes a certificate that is its own authority, for both ends of a
// run, and its key.
func makeKeys(dir string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: "bench"}, SerialNumber: big.NewInt(1),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		return err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(filepath.Join(dir, certFile), "CERTIFICATE", cert); err != nil {
		return err
	}
	return writePEM(filepath.Join(dir, keyFile), "PRIVATE KEY", secret)
}

const certFile, keyFile = "cert.pem", "key.pem"

func writePEM(file, kind string, b []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600)
}

// securedBy is the configuration of the keys in a directory; "" is none.
func securedBy(dir string) (c engine.SecurityConfig) {
	if dir != "" {
		c.CA, c.Cert, c.Key = filepath.Join(dir, certFile), filepath.Join(dir, certFile), filepath.Join(dir, keyFile)
	}
	return c
}
