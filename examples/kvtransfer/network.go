package main

import (
	"encoding/json"
	"net"

	"github.com/hawser-transport/hawser/engine"
)

// network is where other machines reach this process: nowhere by default.
type network struct {
	listen   string // an IP address of this machine
	insecure bool
}

// reach has an engine listen there, and those of its transports that need an
// address: their own default is this machine's loopback as well.
func (n network) reach(cfg *engine.Config) {
	cfg.Security.Insecure = n.insecure
	if n.listen == "" {
		return
	}
	at := net.JoinHostPort(n.listen, "0")
	cfg.Control.Listen = at
	if cfg.Transports == nil {
		cfg.Transports = []engine.TransportConfig{{Name: "tcp"}}
	}
	// Unless it is listed the engine adds it, with the default.
	cfg.Transports = append(cfg.Transports, engine.TransportConfig{Name: "rpcfallback"})
	settings, _ := json.Marshal(map[string]string{"listen": at}) // of strings: it cannot fail
	for i := range cfg.Transports {
		cfg.Transports[i].Config = settings
	}
}
