package demo

import (
	"context"
	"time"

	"github.com/hawser-transport/hawser/cmd/hawser/agent"
	"github.com/hawser-transport/hawser/cmd/hawser/internal/lab"
)

// Hosts reaches the virtual hosts that a file of the lab names.
func Hosts(ctx context.Context, file string) ([]lab.Host, error) {
	list, err := agent.Hosts(file)
	if err != nil {
		return nil, err
	}
	var hosts []lab.Host
	for _, h := range list {
		t, err := lab.At(ctx, h)
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, t)
	}
	return hosts, nil
}

// hostOf is where a node runs.
func (o Options) hostOf(node string) lab.Host {
	switch {
	case len(o.Hosts) == 0:
		return lab.Here{}
	case node == receiverName:
		return o.Hosts[len(o.Hosts)-1]
	}
	return o.Hosts[0]
}

// slow is how much longer than here everything may take.
func (o Options) slow() time.Duration {
	if len(o.Hosts) > 0 {
		return 6
	}
	return 1
}
