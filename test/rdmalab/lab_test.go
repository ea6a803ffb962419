//go:build linux

package rdmalab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// entries takes a "newc" archive apart.
func entries(t *testing.T, b []byte) (names []string, data map[string]string) {
	t.Helper()
	data = map[string]string{}
	for at := 0; ; {
		number := func(i int) int {
			n, err := strconv.ParseUint(string(b[at+6+8*i:at+14+8*i]), 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			return int(n)
		}
		if string(b[at:at+6]) != "070701" {
			t.Fatalf("no entry at %d: %q", at, b[at:at+6])
		}
		size, nameSize := number(6), number(11)
		name := string(b[at+110 : at+110+nameSize-1])
		at += (110 + nameSize + 3) &^ 3
		if name == "TRAILER!!!" {
			if at != len(b) {
				t.Errorf("%d bytes follow the end", len(b)-at)
			}
			return names, data
		}
		names = append(names, name)
		data[name] = string(b[at : at+size])
		at += (size + 3) &^ 3
	}
}

func TestInitrdHoldsWhatAHostNeeds(t *testing.T) {
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var b bytes.Buffer
	if err := writeInitrd(&b, file("agent", "an agent"), "12345", []string{file("z.ko", "zz"), file("a.ko", "a")}); err != nil {
		t.Fatal(err)
	}
	names, data := entries(t, b.Bytes())
	if got := strings.Join(names[len(names)-4:], " "); got != "init secret mods/000-z.ko mods/001-a.ko" {
		t.Errorf("it ends with %s", got)
	}
	if data["init"] != "an agent" || data["secret"] != "12345" || data["mods/000-z.ko"] != "zz" || data["mods/001-a.ko"] != "a" {
		t.Errorf("it has %q", data)
	}
	if err := writeInitrd(&b, filepath.Join(dir, "nothing"), "", nil); err == nil {
		t.Error("no agent is no error")
	}
}

// A lab that cannot start says why, and leaves nothing.
func TestLabThatCannotStart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	if _, err := Start(t.Context(), Options{Kernel: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "deps.sh") {
		t.Errorf("without a kernel: %v", err)
	}
	t.Setenv("PATH", "")
	kernel := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(kernel, "boot"), 0o700), os.WriteFile(filepath.Join(kernel, "boot/vmlinuz-1"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(context.Background(), Options{Kernel: kernel}); err == nil {
		t.Error("a kernel without modules boots")
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
