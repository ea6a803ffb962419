package local

import (
	"github.com/hawser-transport/hawser/internal/cuda"
	"github.com/hawser-transport/hawser/internal/cuda/simcuda"
)

func simulate(file string) (cuda.Driver, error) {
	o, err := simcuda.Load(file)
	if err != nil {
		return nil, err
	}
	d, err := simcuda.New(o)
	if err != nil {
		return nil, err // no typed nil
	}
	return d, nil
}
