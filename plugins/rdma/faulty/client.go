package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs"
	"github.com/hawser-transport/hawser/plugins/rdma/internal/verbs/simverbs"
)

var errUsage = errors.New("usage: see `go doc` of plugins/rdma/faulty")

// client does what the command line asks for.
func client(args []string) (string, error) {
	switch {
	case len(args) == 3 && args[0] == "ctl":
		return ask(args[1], args[2])
	case len(args) >= 3 && args[0] == "sim":
		return simulate(args[1], args[2], args[3:])
	}
	return "", errUsage
}

// ask asks a running plugin.
func ask(path, word string) (string, error) {
	conn, err := net.DialTimeout("unix", path, answerIn)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(answerIn))
	if _, err := fmt.Fprintln(conn, word); err != nil {
		return "", err
	}
	b, err := io.ReadAll(conn)
	if text, bad := strings.CutPrefix(string(b), "error "); bad {
		return "", errors.New(strings.TrimSpace(text))
	}
	return string(b), err
}

// simulate changes the simulated fabric in dir.
func simulate(dir, do string, args []string) (string, error) {
	c := simverbs.Control(dir)
	switch {
	case do == "host" && len(args) > 1:
		return addHost(dir, args[0], args[1:])
	case do == "accounts" && len(args) == 1:
		list, err := c.Accounts(args[0])
		if err != nil {
			return "", err
		}
		b, err := json.Marshal(list)
		return string(b) + "\n", err
	}
	var ports []simverbs.PortName
	for ; len(args) >= 2; args = args[2:] {
		rail, err := strconv.Atoi(args[1])
		if err != nil {
			return "", errUsage
		}
		ports = append(ports, simverbs.PortName{Host: args[0], Device: deviceName(rail), Port: 1})
	}
	switch {
	case do == "port-down" && len(ports) == 1:
		return "", c.PortDown(ports[0])
	case do == "port-up" && len(ports) == 1:
		return "", c.PortUp(ports[0])
	case do == "cut" || do == "heal":
		change := map[string]func(a, b simverbs.PortName) error{"cut": c.CutBoth, "heal": c.HealBoth}[do]
		for ; len(ports) >= 2; ports = ports[2:] {
			if err := change(ports[0], ports[1]); err != nil {
				return "", err
			}
		}
		return "", nil
	}
	return "", errUsage
}

func deviceName(rail int) string { return fmt.Sprintf("sim%d", rail) }

// addHost writes the file of a host with a rail for each address, and says its
// name.
func addHost(dir, name string, addresses []string) (string, error) {
	o := simverbs.Options{Host: name}
	for rail, text := range addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return "", err
		}
		o.Devices = append(o.Devices, simverbs.Device{
			Name: deviceName(rail), NUMA: rail,
			Ports: []simverbs.Port{{GIDs: []verbs.GID{{Addr: netip.AddrFrom16(a.As16()), Type: verbs.GIDRoCEv2}}}},
		})
	}
	b, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, name+".json")
	return file + "\n", os.WriteFile(file, b, 0o600)
}
