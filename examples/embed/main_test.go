package main

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The example does what it says, with real plugin processes.
func TestRun(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"tcp", "rpcfallback"} {
		out, err := exec.Command("go", "build", "-o", filepath.Join(bin, "hawser-"+name), "../../plugins/"+name).CombinedOutput()
		if err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	if err := run(bin); err != nil {
		t.Fatal(err)
	}
}
