package docs

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// documented returns the blocks marked `hex NAME` of docs/protocol.md, and as
// they are those marked `json NAME`.
func documented(t *testing.T) map[string]string {
	t.Helper()
	list := map[string]string{}
	for _, b := range blocks(read(t, root+"/docs/protocol.md")) {
		if name, ok := strings.CutPrefix(b.info, "json "); ok {
			list[name] = canonical(t, name, b.body)
			continue
		}
		name, ok := strings.CutPrefix(b.info, "hex ")
		if !ok {
			continue
		}
		text := ""
		for line := range strings.Lines(b.body) {
			line, _, _ = strings.Cut(line, "#")
			text += strings.Join(strings.Fields(line), "")
		}
		raw, err := hex.DecodeString(text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, twice := list[name]; twice {
			t.Errorf("%s is shown twice", name)
		}
		list[name] = hex.EncodeToString(raw)
	}
	return list
}

// encoded returns what the code makes: it runs the programs in testdata as if
// they lay where they may import what is internal.
func encoded(t *testing.T) map[string]string {
	t.Helper()
	base, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]string{
		"engine/internal/docbytes":  "testdata/engine/main.go",
		"sdk/internal/docbytes":     "testdata/sdk/main.go",
		"plugins/internal/docbytes": "testdata/plugins/main.go",
		"plugins/rdma/docbytes":     "testdata/rdma/main.go",
	}
	replace := map[string]string{}
	for dir, file := range programs {
		if file, err = filepath.Abs(file); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(base, dir, "main.go")] = file
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for dir := range programs {
		cmd := exec.Command("go", "run", "-overlay", file, "./"+dir)
		cmd.Dir = root
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", dir, err)
		}
		for line := range strings.Lines(string(out)) {
			name, bytes, _ := strings.Cut(strings.TrimSpace(line), " ")
			if strings.ContainsAny(bytes, "[{") {
				bytes = canonical(t, name, bytes)
			}
			list[name] = bytes
		}
	}
	return list
}

// canonical is JSON that compares, whatever this machine is called.
func canonical(t *testing.T, name, text string) string {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	if m, ok := v.(map[string]any); ok {
		if _, port, ok := strings.Cut(fmt.Sprint(m["local_nic_path"]), "@"); ok {
			m["local_nic_path"] = "host@" + port
		}
	}
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestBytesAreTheCodes(t *testing.T) {
	doc, code := documented(t), encoded(t)
	// These have no exported encoder: the tests of the wire speak them.
	for _, name := range []string{
		"join-memory", "tcp-write", "tcp-written", "tcp-read", "tcp-was-read", "tcp-refused", "rpc-write", "rpc-written",
		"tcp-frame", "tcp-receipt", "rpc-frame", "rpc-receipt", "rpc-large", "rpc-chunk",
	} {
		delete(doc, name)
	}
	if want, got := slices.Sorted(maps.Keys(code)), slices.Sorted(maps.Keys(doc)); !slices.Equal(want, got) {
		t.Errorf("docs/protocol.md shows %q, the code makes %q", got, want)
	}
	for name, want := range code {
		if got, ok := doc[name]; ok && got != want {
			t.Errorf("%s: docs/protocol.md says\n%s, the code makes\n%s", name, got, want)
		}
	}
}
