package pluginhost

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hawser-transport/hawser/sdk"
)

// maxLockBytes bounds plugins.lock.
const maxLockBytes = 1 << 20

// Lock is the content of plugins.lock: the checksums of the plugin binaries
// that an operator has approved. The file has lines of a SHA-256 in
// hexadecimal, two spaces and a plugin's name, as sha256sum writes them; empty
// lines and those that begin with # are kept as they are.
type Lock struct {
	lines []lockLine
}

// lockLine is an entry, or, without a name, a line of text.
type lockLine struct{ sum, name, text string }

// ParseLock reads a lock file's content. Errors name the file and the line.
func ParseLock(file string, content []byte) (*Lock, error) {
	l := &Lock{}
	s := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; s.Scan(); n++ {
		line, err := parseLockLine(s.Text())
		if err == nil && line.name != "" && l.Sum(line.name) != "" {
			err = fmt.Errorf("%s is listed twice", line.name)
		}
		if err != nil {
			return nil, sdk.Errorf(sdk.InvalidArgument, "%s:%d: %w", file, n, err)
		}
		l.lines = append(l.lines, line)
	}
	if err := s.Err(); err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%s:%d: %w", file, len(l.lines)+1, err)
	}
	return l, nil
}

func parseLockLine(text string) (lockLine, error) {
	if t := strings.TrimSpace(text); t == "" || t[0] == '#' {
		return lockLine{text: text}, nil
	}
	sum, name, ok := strings.Cut(strings.TrimRight(text, " \t\r"), "  ")
	if !ok {
		return lockLine{}, errors.New("expected a SHA-256, two spaces and a plugin's name")
	}
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 {
		return lockLine{}, fmt.Errorf("%q is no SHA-256 in hexadecimal", clip(sum, 80))
	}
	if !validName(name) {
		return lockLine{}, fmt.Errorf("%q is no name of a plugin: 1 to 32 of [a-z0-9-]", clip(name, 64))
	}
	return lockLine{sum: strings.ToLower(sum), name: name}, nil
}

// LoadLock reads a lock file. One that is not there is empty.
func LoadLock(file string) (*Lock, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return &Lock{}, nil
	}
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "read the plugin lock: %w", err)
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, maxLockBytes+1))
	if err != nil {
		return nil, sdk.Errorf(sdk.InvalidArgument, "read the plugin lock: %w", err)
	}
	if len(content) > maxLockBytes {
		return nil, sdk.Errorf(sdk.InvalidArgument, "%s: more than %d bytes: this is no plugin lock", file, maxLockBytes)
	}
	return ParseLock(file, content)
}

// Sum returns the approved checksum of a plugin, or "".
func (l *Lock) Sum(name string) string {
	for _, line := range l.lines {
		if line.name != "" && line.name == name {
			return line.sum
		}
	}
	return ""
}

// Names returns the plugins that are listed, in the file's order.
func (l *Lock) Names() []string {
	var names []string
	for _, line := range l.lines {
		if line.name != "" {
			names = append(names, line.name)
		}
	}
	return names
}

// Verify compares a plugin's binary with its entry. A plugin without an entry
// is an error too.
func (l *Lock) Verify(name, path string) error {
	want := l.Sum(name)
	if want == "" {
		return sdk.Errorf(sdk.InvalidArgument, "plugin %s is not in the plugin lock; approve it with `hawser plugin verify --update`", name)
	}
	got, err := Checksum(path)
	if err != nil {
		return err
	}
	return compareSums(path, got, want)
}

// Update approves what the path holds now. It reports whether that changed
// anything.
func (l *Lock) Update(name, path string) (changed bool, err error) {
	if !validName(name) {
		return false, sdk.Errorf(sdk.InvalidArgument, "%q is no name of a plugin", clip(name, 64))
	}
	sum, err := Checksum(path)
	if err != nil {
		return false, err
	}
	i := slices.IndexFunc(l.lines, func(line lockLine) bool { return line.name == name })
	switch {
	case i < 0:
		l.lines = append(l.lines, lockLine{sum: sum, name: name})
	case l.lines[i].sum == sum:
		return false, nil
	default:
		l.lines[i].sum = sum
	}
	return true, nil
}

// Bytes returns the file's content.
func (l *Lock) Bytes() []byte {
	var b bytes.Buffer
	for _, line := range l.lines {
		if line.name == "" {
			fmt.Fprintln(&b, line.text)
		} else {
			fmt.Fprintf(&b, "%s  %s\n", line.sum, line.name)
		}
	}
	return b.Bytes()
}

// Save replaces the file in one step: a reader sees the old or the new one.
func (l *Lock) Save(file string) error {
	temp, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return sdk.Errorf(sdk.Unavailable, "write the plugin lock: %w", err)
	}
	_, err = temp.Write(l.Bytes())
	err = errors.Join(err, temp.Chmod(0o644), temp.Sync(), temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		_ = os.Remove(temp.Name())
		return sdk.Errorf(sdk.Unavailable, "write the plugin lock: %w", err)
	}
	return nil
}
