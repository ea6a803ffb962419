//go:build linux

package simcuda

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "machine.json")
	for _, c := range []struct{ text, refused string }{
		{`{"Devices":[{},{"Fabric":"works","Memory":4194304}]}` + "\n", ""},
		{`{"Devices":[{"Fabrics":"works"}]}`, `unknown field "Fabrics"`},
		{`{"GPUs":2}`, `unknown field "GPUs"`},
		{`{"Devices":[{}]} {}`, "more than one JSON value"},
		{`{"Devices":2}`, "cannot unmarshal"},
		{``, "EOF"},
	} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		o, err := Load(file)
		switch {
		case c.refused == "":
			want := Options{Dir: dir, Devices: []Device{{}, {Fabric: FabricWorks, Memory: 4 << 20}}}
			if err != nil || !reflect.DeepEqual(o, want) {
				t.Errorf("%s: %+v, %v", c.text, o, err)
			}
		case err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), c.refused):
			t.Errorf("%s: %v", c.text, err)
		}
	}
}
