package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// child is a peer process: it prints its address, and ends when its standard
// input does.
type child struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	address string
}

func start(cmd *exec.Cmd) (*child, error) {
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("peer said no address: %w", err)
	}
	c.address = strings.TrimSpace(line)
	return c, nil
}

func (c *child) stop() {
	_ = c.stdin.Close()
	done := make(chan struct{})
	go func() { _ = c.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		_ = c.cmd.Process.Kill()
		<-done
	}
}

// untilEOF returns when the parent closes our standard input.
func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// servePeer is a peer process.
func servePeer(kind string, args []string) error {
	switch kind {
	case "tcp":
		return servePlainTCP()
	case "grpc":
		return serveUnary()
	case "hawser":
		return serveHawser(args)
	default:
		return fmt.Errorf("unknown peer %q", kind)
	}
}
