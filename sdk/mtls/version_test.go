package mtls_test

import (
	"crypto/tls"
	"errors"
	"testing"

	"github.com/hawser-transport/hawser/sdk/mtls"
	"github.com/hawser-transport/hawser/sdk/sdktest"
)

// Older versions than 1.3 are not spoken, whatever keys the peer has.
func TestOnlyVersion13(t *testing.T) {
	ca := sdktest.NewAuthority(t, "ca")
	own, theirs := ca.Issue("alice", nil), ca.Issue("bob", nil)
	ring, err := mtls.Ring(&own)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(theirs.Cert, theirs.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		x, y := join(t)
		server := mtls.Server(y, ring, "p", nil)
		said := make(chan error, 1)
		go func() {
			_, err := server.Read(make([]byte, 1))
			said <- err
			_ = server.Close()
		}()
		client := tls.Client(x, &tls.Config{
			MinVersion: tls.VersionTLS12, MaxVersion: version, NextProtos: []string{"p"},
			Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, //nolint:gosec // the test's peer trusts anybody
		})
		err := client.Handshake()
		if err == nil {
			_, err = client.Write([]byte("x"))
		}
		if ok := err == nil && <-said == nil; ok != (version == tls.VersionTLS13) {
			t.Errorf("version %x: %v", version, err)
		}
	}
}

// The certificate of a node is no authority, not even for itself.
func TestAnAuthorityIsOne(t *testing.T) {
	keys := sdktest.NewAuthority(t, "ca").Issue("alice", nil)
	keys.CA = keys.Cert
	var fault *mtls.Fault
	if _, err := mtls.New(keys); !errors.As(err, &fault) || fault.Part != "ca" {
		t.Errorf("%v", err)
	}
}
