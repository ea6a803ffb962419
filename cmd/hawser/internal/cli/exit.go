package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-transport/hawser/engine"
)

// Exit codes.
const (
	exitOK          = 0
	exitUsage       = 1
	exitFailed      = 2
	exitUnable      = 3
	exitTimeout     = 4
	exitInterrupted = 130
)

const exitCodesHelp = `Exit codes:
  0    everything asked for was done
  1    wrong arguments or configuration; nothing was started
  2    it ran, and some of it failed (a notification, a demo row, a checksum)
  3    it could not run (port in use, no transport could be started, no node
       to ask, ...)
  4    the time given with --timeout was over first
  130  interrupted (a node that SIGINT or SIGTERM ends in order exits with 0)`

// failure is an error with an exit code.
type failure struct {
	code int
	err  error
	help bool // how to use the command would help
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func usageError(format string, args ...any) error {
	return &failure{exitUsage, fmt.Errorf(format, args...), true}
}

func failed(code int, format string, args ...any) error {
	return &failure{code: code, err: fmt.Errorf(format, args...)}
}

// errReported is an end that the command has already told all about.
var errReported = errors.New("reported")

// errInterrupted is what a program is told of a command that a signal ended.
var errInterrupted = errors.New("interrupted")

// silently ends with a code and prints nothing more.
func silently(code int) error { return &failure{code: code, err: errReported} }

// exitCode is the code that an error of a command means.
func exitCode(ctx context.Context, err error) int {
	var f *failure
	var config engine.ConfigErrors
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &f):
		return f.code
	case ctx.Err() != nil:
		return exitInterrupted
	case errors.As(err, &config):
		return exitUsage
	default:
		return exitUnable
	}
}
