package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is named as a key file must be one: nothing that never ends, and nothing
// that takes the host's memory.
func TestKeyFilesHaveAKindAndASize(t *testing.T) {
	dir := t.TempDir()
	large, most := filepath.Join(dir, "large"), filepath.Join(dir, "most")
	for path, n := range map[string]int{large: maxKeyFile + 1, most: maxKeyFile} {
		if err := os.WriteFile(path, make([]byte, n), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		dir: "not a regular file", os.DevNull: "not a regular file", large: "has more than", most: "",
		filepath.Join(dir, "nothing"): "no such file",
	} {
		b, err := readKeyFile(path, true)
		if want == "" && (err != nil || len(b) != maxKeyFile) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %d bytes, %v, want %q", path, len(b), err, want)
		}
	}
}

// Without keys transports listen at loopback addresses only, unless insecure is
// said.
func TestWhereTransportsMayListen(t *testing.T) {
	for _, insecure := range []bool{false, true} {
		check := SecurityConfig{Insecure: insecure}.checkListen()
		if err := check("127.0.0.1:0"); err != nil {
			t.Errorf("loopback: %v", err)
		}
		if err := check("0.0.0.0:0"); (err == nil) != insecure {
			t.Errorf("insecure %v, every address: %v", insecure, err)
		}
	}
}
