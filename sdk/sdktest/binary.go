package sdktest

import (
	"bytes"
	"context"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"

	"github.com/hawser-transport/hawser/sdk"
	"github.com/hawser-transport/hawser/sdk/remote"
)

// Binary starts a plugin's binary and returns the transport in its process,
// for Harness.New together with Harness.External. There is no supervision:
// what the engine guards against is not guarded against here. env adds
// variables, as KEY=value. The process is killed at the end of the test, at
// the latest.
func Binary(t testing.TB, path string, env ...string) sdk.Transport {
	t.Helper()
	host, theirs, err := remote.SocketPair()
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	defer theirs.Close() //nolint:errcheck // the process has its own
	cmd := exec.Command(path)
	// The race detector's wait at exit would be most of the time.
	cmd.Env = append([]string{"GORACE=atexit_sleep_ms=0", sdk.EnvLinkFD + "=3"}, env...)
	cmd.ExtraFiles = []*os.File{theirs}
	lines := &tail{}
	client := plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  remote.Handshake(),
		Plugins:          remote.Plugins(path),
		Cmd:              cmd,
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     30 * time.Second,
		Stderr:           lines,
		Logger:           hclog.New(&hclog.LoggerOptions{Level: hclog.Off}),
	})
	t.Cleanup(client.Kill)
	tr, err := dispense(client, host)
	if err != nil {
		client.Kill() // waits until all that it printed was read
		t.Fatalf("%s: %v\n%s", path, err, lines)
	}
	return &process{Transport: tr, client: client}
}

func dispense(client *plugin.Client, host *net.UnixConn) (*remote.Transport, error) {
	protocol, err := client.Client()
	if err != nil {
		host.Close() //nolint:errcheck // the first error counts
		return nil, err
	}
	raw, err := protocol.Dispense(remote.Name)
	if err != nil {
		host.Close() //nolint:errcheck // the first error counts
		return nil, err
	}
	tr := raw.(*remote.Transport)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return tr, tr.Open(ctx, host, nil)
}

// process ends with its transport.
type process struct {
	*remote.Transport
	client *plugin.Client
}

func (p *process) Close(ctx context.Context) error {
	err := p.Transport.Close(ctx)
	p.client.Kill()
	return err
}

// tail keeps the last lines of a process, for the error.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf.Write(p)
	if extra := w.buf.Len() - 8192; extra > 0 {
		w.buf.Next(extra)
	}
	return len(p), nil
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
