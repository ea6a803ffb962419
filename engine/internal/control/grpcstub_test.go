package control

import "testing"

type grpcWorld struct{}
type grpcCarrier struct {
	Carrier
	address string
	options struct{ Listen string }
}

func (grpcWorld) carrier(t *testing.T, at string) Carrier { t.Skip("later"); return nil }
