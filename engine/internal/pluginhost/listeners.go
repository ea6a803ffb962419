package pluginhost

import (
	"encoding/json"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/hawser-transport/hawser/sdk"
)

// LoopbackOnly refuses every address that other machines can reach.
func LoopbackOnly(address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if strings.EqualFold(host, "localhost") {
		return nil // what it resolves to is checked once it is bound
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return errors.New("without mutual TLS only loopback addresses may be bound: use 127.0.0.1 or [::1], or configure security.ca, security.cert and security.key")
}

// listeners holds a transport's listening sockets: opened once, kept across
// restarts and replacements, and lent to each instance as a duplicate.
type listeners struct {
	transport string
	check     func(address string) error
	open      map[string]listening
}

type listening struct {
	address string // as configured
	socket  *net.TCPListener
}

// lend opens what is missing and returns a duplicate of each socket, by name.
// The receiver closes them. Sockets that the settings no longer ask for are
// returned as stale: they are closed when the instance that uses them is gone.
func (l *listeners) lend(specs []sdk.ListenerSpec, settings json.RawMessage) (lent map[string]net.Listener, err error) {
	lent = map[string]net.Listener{}
	defer func() {
		if err != nil {
			closeAll(lent)
			lent = nil
		}
	}()
	for _, spec := range specs {
		address, err := listenAddress(l.transport, spec, settings)
		if err != nil {
			return lent, err
		}
		now, held := l.open[spec.Name]
		if !held || now.address != address {
			socket, err := l.listen(spec, address)
			if err != nil {
				return lent, err
			}
			if held {
				// Instances hold duplicates of their own; this only ends what
				// would be lent to new ones.
				_ = now.socket.Close()
			}
			now = listening{address, socket}
			l.open[spec.Name] = now
		}
		if lent[spec.Name], err = duplicate(now.socket); err != nil {
			delete(lent, spec.Name)
			return lent, sdk.Errorf(sdk.Unavailable, "transport %s: duplicate the listener at %s: %w", l.transport, address, err)
		}
	}
	return lent, nil
}

// listen opens one socket.
func (l *listeners) listen(spec sdk.ListenerSpec, address string) (*net.TCPListener, error) {
	where := "transport " + l.transport + ": config." + spec.Key + " " + address
	if err := l.check(address); err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%s: %w", where, err)
	}
	ln, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, sdk.Errorf(sdk.Busy, "%s: the address is in use by another program: choose another one, or port 0 for any free port", where)
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%s: %w", where, err)
	}
	if err := l.check(ln.Addr().String()); err != nil {
		_ = ln.Close()
		return nil, sdk.Errorf(sdk.InvalidArgument, "%s (bound %s): %w", where, ln.Addr(), err)
	}
	return ln.(*net.TCPListener), nil
}

// addresses returns where each listener really listens.
func (l *listeners) addresses() map[string]string {
	m := make(map[string]string, len(l.open))
	for name, o := range l.open {
		m[name] = o.socket.Addr().String()
	}
	return m
}

func (l *listeners) close() {
	for name, o := range l.open {
		_ = o.socket.Close()
		delete(l.open, name)
	}
}

// listenAddress reads the address from the settings, or takes the default.
func listenAddress(transport string, spec sdk.ListenerSpec, settings json.RawMessage) (string, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(orEmpty(settings), &object); err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "transport %s: config: %w", transport, err)
	}
	address := spec.Default
	if raw, ok := object[spec.Key]; ok && spec.Key != "" {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return "", sdk.Errorf(sdk.InvalidArgument, "transport %s: config.%s must be a string, \"host:port\"", transport, spec.Key)
		}
		if s != "" {
			address = s
		}
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", sdk.Errorf(sdk.InvalidArgument, "transport %s: config.%s: %q is not \"host:port\"", transport, spec.Key, clip(address, 200))
	}
	return address, nil
}

// duplicate returns a listener of its own on the same socket.
func duplicate(l *net.TCPListener) (net.Listener, error) {
	f, err := l.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileListener(f)
}

func closeAll(m map[string]net.Listener) {
	for _, l := range m {
		_ = l.Close()
	}
}
