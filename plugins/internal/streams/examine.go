package streams

import (
	"net"
	"strings"

	"github.com/hawser-transport/hawser/plugins/internal/address"
	"github.com/hawser-transport/hawser/sdk"
)

// Examine says where peers are told to reach a transport with these settings,
// or, with the error of reading them, what is wrong with them. Whether the
// address can be listened on is the host's to find out, which opens it.
func Examine(s Settings, err error) []sdk.Finding {
	var at *net.TCPAddr
	if err == nil {
		at, err = net.ResolveTCPAddr("tcp", s.Listen)
	}
	if err != nil {
		return []sdk.Finding{{Subject: "settings", State: sdk.FindingProblem, Found: err.Error()}}
	}
	if at.IP == nil {
		at.IP = net.IPv6unspecified
	}
	free := at.Port == 0
	if free {
		at.Port = 1 // in place of the one that there will be
	}
	published, err := address.Published(at, s.Advertise)
	if err != nil {
		return []sdk.Finding{{Subject: "address", State: sdk.FindingProblem, Found: err.Error(), Do: "set advertise to the address at which peers reach this machine"}}
	}
	f := sdk.Finding{Subject: "address", State: sdk.FindingOK, Found: "peers are told to dial " + published}
	if host, ok := strings.CutSuffix(published, ":1"); ok && free {
		f.Found = "peers are told to dial " + host + ", at the port that is free then"
	}
	if host, _, err := net.SplitHostPort(published); err == nil && (host == "localhost" || net.ParseIP(host).IsLoopback()) {
		f.Found += ": only those on this machine can"
	}
	return []sdk.Finding{f}
}
