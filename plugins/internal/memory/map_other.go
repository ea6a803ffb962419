//go:build !linux

package memory

import "github.com/hawser-transport/hawser/sdk"

func mapRegion(r *sdk.Region) (mapping, bytes []byte, err error) {
	return nil, nil, sdk.Errorf(sdk.Unsupported, "region %v: host memory is a memfd, which this system does not have", r.Capability)
}

func unmap([]byte) error { return nil }
