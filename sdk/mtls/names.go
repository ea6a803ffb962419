package mtls

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// names are what a certificate says of its bearer: DNS names, addresses, URIs
// (SPIFFE's among them) and the common name.
func names(c *x509.Certificate) []string {
	list := slices.Clone(c.DNSNames)
	for _, ip := range c.IPAddresses {
		if a, ok := netip.AddrFromSlice(ip); ok {
			list = append(list, a.Unmap().String())
		}
	}
	for _, u := range c.URIs {
		list = append(list, u.String())
	}
	if cn := c.Subject.CommonName; cn != "" && !slices.Contains(list, cn) {
		list = append(list, cn)
	}
	return list
}

// folded is the form in which names are compared: an address as Go writes it, a
// URI as it is, since the case of its path counts, and anything else in lower
// case.
func folded(name string) string {
	if a, err := netip.ParseAddr(name); err == nil {
		return a.Unmap().String()
	}
	if strings.Contains(name, "://") {
		return name
	}
	return strings.ToLower(name)
}

func allowed(list []string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, n := range list {
		m[folded(n)] = true
	}
	return m
}

// maxIdentity bounds an identity that is written out.
const maxIdentity = 256

// identity is the set of a certificate's names in one line, so that a renewed
// certificate is the same one's and a shared one is the same for all who share
// it. Without a name it is that of the key. It is never empty, and always
// printable.
func identity(c *x509.Certificate) string {
	list := names(c)
	if len(list) == 0 {
		return fmt.Sprintf("key:%x", sha256.Sum256(c.RawSubjectPublicKeyInfo))
	}
	for i, n := range list {
		list[i] = fmt.Sprintf("%+q", folded(n))
	}
	slices.Sort(list)
	text := strings.Join(slices.Compact(list), ", ")
	if len(text) > maxIdentity {
		return fmt.Sprintf("%s... (names:%x)", text[:maxIdentity], sha256.Sum256([]byte(text)))
	}
	return text
}

// Identity is who the peer's certificate says that it is, after the handshake;
// empty without TLS. Two connections have the same one if their certificates
// bear the same names.
func Identity(conn net.Conn) string {
	if leaf := leafOf(conn); leaf != nil {
		return identity(leaf)
	}
	return ""
}

// RemoteAddr implements net.Conn. The address knows whose connection it is of,
// so that a gRPC server can ask: see [IdentityAt].
func (c *Conn) RemoteAddr() net.Addr { return address{c.Conn.RemoteAddr(), c} }

type address struct {
	net.Addr
	conn *Conn
}

// IdentityAt is [Identity] of the connection that the address is the remote one
// of.
func IdentityAt(a net.Addr) string {
	if a, ok := a.(address); ok {
		return Identity(a.conn)
	}
	return ""
}

// PeerNames returns the names that the peer's certificate bears, after the
// handshake; nil without TLS.
func PeerNames(conn net.Conn) []string {
	if leaf := leafOf(conn); leaf != nil {
		return names(leaf)
	}
	return nil
}

func leafOf(conn net.Conn) *x509.Certificate {
	if c, ok := conn.(*Conn); ok {
		if list := c.ConnectionState().PeerCertificates; len(list) > 0 {
			return list[0]
		}
	}
	return nil
}

// Identity is this node's own, as its peers see it.
func (r *Keyring) Identity() string { return identity(r.set.Load().own.Leaf) }
