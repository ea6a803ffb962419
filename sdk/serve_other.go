//go:build !linux

package sdk

import (
	"net"
	"os"
)

type inherited struct {
	handshake      *os.File
	link           *net.UnixConn
	parent         *os.File
	stdout, stderr *os.File
}

func sealDescriptors() error { return nil }

func dupStdout() (*os.File, error) { return os.Stdout, nil }

func foldStdout() error { return nil }

func inherit() (*inherited, error) {
	return nil, Errorf(Unsupported, "plugins run on Linux only")
}
