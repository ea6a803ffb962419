package rdmalab

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// wanted are the modules that a host needs, beside what they depend on.
var wanted = []string{"9p", "9pnet_virtio", "virtio_pci", "virtio_net", "overlay", "crc32_generic", "ib_uverbs", "rdma_rxe"}

// modules finds their files below dir, each after what it depends on.
func modules(dir string) ([]string, error) {
	files := map[string]string{} // by name
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name, ok := strings.CutSuffix(d.Name(), ".ko"); ok {
			files[moduleName(name)] = path
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	var order []string
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if name = moduleName(name); seen[name] {
			return nil
		}
		seen[name] = true
		path, ok := files[name]
		if !ok {
			return fmt.Errorf("the kernel has no module %s: %s", name, dir)
		}
		needs, err := dependencies(path)
		if err != nil {
			return err
		}
		for _, n := range needs {
			if err := add(n); err != nil {
				return err
			}
		}
		order = append(order, path)
		return nil
	}
	for _, name := range wanted {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// moduleName is a module's name however it is written.
func moduleName(s string) string { return strings.ReplaceAll(s, "-", "_") }

// dependencies are the modules that a module's file says it needs.
func dependencies(path string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	section := f.Section(".modinfo")
	if section == nil {
		return nil, fmt.Errorf("%s is not a kernel module", path)
	}
	info, err := section.Data()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for _, word := range bytes.Split(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(word), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
