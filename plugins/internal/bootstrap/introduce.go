package bootstrap

import (
	"context"
	"io"
	"net"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/mtls"
)

// Introduce is the first exchange on a connection that this side has dialled: the
// TLS handshake if there is one, who the peer must be, the join, and the peer's
// verdict. The connection stays the caller's.
func Introduce(ctx context.Context, conn net.Conn, target sdk.Target, j Join) (Verdict, error) {
	if err := mtls.Handshake(ctx, conn); err != nil {
		return 0, err
	}
	if err := Expected(target, conn); err != nil {
		return 0, err
	}
	// A peer that has refused the certificate has left its word to be read.
	_, failed := conn.Write(j.Marshal())
	var reply [VerdictLen]byte
	if _, err := io.ReadFull(conn, reply[:]); err != nil {
		if failed != nil && sdk.CodeOf(err) == 0 {
			err = failed
		}
		return 0, err
	}
	return ParseVerdict(reply[:])
}
