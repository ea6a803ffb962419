package simverbs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A file that is not as it should be is told with its name, and nothing is made.
func TestOpen(t *testing.T) {
	dir, err := os.MkdirTemp("", "sv") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "h.json")
	for _, c := range []struct{ text, want string }{
		{"", "no such file"},
		{`{"Host": "h", "Device": []}`, `unknown field "Device"`},
		{`{"Host": "h", "Devices": [{"Name": "sim0", "Ports": [{"GID": []}]}]}`, `unknown field "GID"`},
		{`{"Host": "h"} {}`, "more than one value"},
		{`{"Host": "h"`, "unexpected EOF"},
		{`{}`, "a host without"},
		{`{"Host": "h", "Dir": "` + dir + `/nowhere"}`, "Dir: stat " + dir + "/nowhere: no such file"},
		{`{"Host": "h", "Dir": "` + file + `"}`, "is not a directory"},
	} {
		_ = os.Remove(file)
		if c.text != "" {
			if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if p, err := Open(file); err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
			if p != nil {
				_ = p.Close()
			}
		}
		if list, _ := os.ReadDir(dir); len(list) > 1 {
			t.Errorf("%s: made %v", c.text, list)
		}
	}
	if err := os.WriteFile(file, []byte(`{"Host": "h"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := Open(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
}
