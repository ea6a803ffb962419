package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hawser-transport/hawser/plugins/internal/rigtest"
)

func TestMoveFaults(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "hawser-tcp")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	rigtest.MoveFaults(t, binary)
}
