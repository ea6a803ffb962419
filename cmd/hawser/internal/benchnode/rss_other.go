//go:build !linux

package benchnode

import "errors"

func anonymous(int) (int64, error) { return 0, errors.New("only Linux tells a process's own memory") }
