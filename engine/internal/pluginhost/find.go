package pluginhost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hawser-transport/hawser/sdk"
)

// BinaryPrefix begins the name of every plugin's binary.
const BinaryPrefix = "hawser-"

// ErrNotFound is in Find's error where no directory has a file of the name: the
// plugin is not installed. One that is there and cannot be used is another
// matter.
var ErrNotFound = errors.New("was not found")

var errUnusable = errors.New("is there and cannot be used")

// notThere is what usable says of a path that does not exist.
const notThere = "not there"

// Find returns the path of a plugin's binary: the first of the directories
// that has one counts. A file of the right name that cannot be executed does
// not end the search, but is mentioned when nothing is found.
func Find(name string, dirs []string) (string, error) {
	if !validName(name) {
		return "", sdk.Errorf(sdk.InvalidArgument, "%q is no name of a plugin: 1 to 32 of [a-z0-9-]", clip(name, 64))
	}
	if len(dirs) == 0 {
		return "", sdk.Errorf(sdk.InvalidArgument, "plugin %s: no directory to look in: set plugins.dir or HAWSER_PLUGIN_PATH", name)
	}
	var looked []string
	fail := ErrNotFound
	for _, dir := range dirs {
		path := filepath.Join(dir, BinaryPrefix+name)
		fault := usable(path)
		if fault == "" {
			return path, nil
		}
		if fault != notThere {
			fail = errUnusable
		}
		looked = append(looked, fmt.Sprintf("%s (%s)", path, fault))
	}
	return "", sdk.Errorf(sdk.InvalidArgument,
		"plugin %s %w; looked at %s. Install it in one of these places, or set plugins.dir or HAWSER_PLUGIN_PATH",
		name, fail, strings.Join(looked, ", "))
}

// usable says why a path cannot be a plugin's binary, or nothing.
func usable(path string) string {
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return notThere
	case errors.Is(err, os.ErrPermission):
		return "not allowed to look"
	case err != nil:
		return err.Error()
	case st.IsDir():
		return "a directory"
	case !st.Mode().IsRegular():
		return "not a regular file"
	case st.Mode()&0o111 == 0:
		return "not executable: chmod +x it"
	}
	return ""
}
