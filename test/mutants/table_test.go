package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// pkg is what `go list` says of a package.
type pkg struct {
	Dir, ImportPath, Export string
	GoFiles, TestGoFiles    []string
	XTestGoFiles            []string
	ImportMap               map[string]string
	fset                    *token.FileSet
	files                   map[string]*ast.File
	tests                   map[string]bool
	exports                 map[string]string // shared by all
	conf                    types.Config
}

// TestMutantsCanBeTried wants every entry of the table to be one that a run
// could try: its text is in its file exactly once, what it becomes compiles,
// and the tests exist. A run would say the same, an hour later.
func TestMutantsCanBeTried(t *testing.T) {
	packages := load(t)
	names := map[string]bool{}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			if names[m.name] {
				t.Fatal("two mutants have this name")
			}
			names[m.name] = true
			src, err := os.ReadFile(filepath.Join(root, m.file))
			if err != nil {
				t.Fatal(err)
			}
			out, ok := m.changed(src)
			if !ok {
				t.Fatalf("stale: the text to replace is in %s %d times, or stays as it is", m.file, bytes.Count(src, []byte(m.old)))
			}
			if err := packages[filepath.Dir(m.file)].check(filepath.Base(m.file), out); err != nil {
				t.Fatalf("what %s becomes does not compile: %v", m.file, err)
			}
			where := packages[m.pkg]
			if where == nil {
				t.Fatalf("there is no package %s", m.pkg)
			}
			for _, name := range strings.Split(m.test, "|") {
				if !where.tests[name] {
					t.Errorf("%s has no %s", m.pkg, name)
				}
			}
		})
	}
}

// TestCheckFindsFaults is for the check itself.
func TestCheckFindsFaults(t *testing.T) {
	p := load(t)["engine/internal/dedup"]
	src, err := os.ReadFile(filepath.Join(root, "engine/internal/dedup/window.go"))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.check("window.go", src); err != nil {
		t.Fatal(err)
	}
	for _, fault := range []string{"}", "\nfunc unused() { x := 1 }\n", "\nimport \"os\"\n", "\nfunc wrong() int { return \"\" }\n"} {
		if p.check("window.go", append(bytes.Clone(src), fault...)) == nil {
			t.Errorf("not found: %q", fault)
		}
	}
	if _, ok := (mutant{old: "func", new: "x"}).changed(src); ok {
		t.Error("a text that is there many times is no fault")
	}
	if _, ok := (mutant{old: "not there", new: "x"}).changed(src); ok {
		t.Error("a text that is not there is no fault")
	}
}

// load lists the packages that mutants and their tests are in, by folder, with
// the compiled form of what they import: building that is the only work, and
// the build cache has it.
func load(t *testing.T) map[string]*pkg {
	t.Helper()
	dirs := map[string]bool{}
	for _, m := range mutants {
		dirs["./"+filepath.Dir(m.file)], dirs["./"+m.pkg] = true, true
	}
	args := []string{"list", "-export", "-deps", "-json=Dir,ImportPath,Export,GoFiles,TestGoFiles,XTestGoFiles,ImportMap"}
	cmd := exec.Command("go", append(args, keys(dirs)...)...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "GOOS=linux") // where all of it compiles
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	top, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	exports := map[string]string{}
	packages := map[string]*pkg{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &pkg{exports: exports}
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
		if rel, err := filepath.Rel(top, p.Dir); err == nil && dirs["./"+filepath.ToSlash(rel)] {
			packages[filepath.ToSlash(rel)] = p
		}
	}
	for _, p := range packages {
		p.read(t)
	}
	return packages
}

func keys(m map[string]bool) []string {
	var list []string
	for k := range maps.Keys(m) {
		list = append(list, k)
	}
	return list
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)

// read parses the package's files and finds its tests.
func (p *pkg) read(t *testing.T) {
	t.Helper()
	p.fset, p.files, p.tests = token.NewFileSet(), map[string]*ast.File{}, map[string]bool{}
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(p.fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		p.files[name] = f
	}
	for _, name := range append(p.TestGoFiles, p.XTestGoFiles...) {
		src, err := os.ReadFile(filepath.Join(p.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range testName.FindAllSubmatch(src, -1) {
			p.tests[string(found[1])] = true
		}
	}
	p.conf.Importer = importer.ForCompiler(p.fset, "gc", func(path string) (io.ReadCloser, error) {
		if to, ok := p.ImportMap[path]; ok {
			path = to
		}
		return os.Open(p.exports[path])
	})
}

// check type-checks the package with another text for one of its files.
func (p *pkg) check(name string, src []byte) error {
	if p == nil {
		return errors.New("its package is not there")
	}
	f, err := parser.ParseFile(p.fset, name, src, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	var files []*ast.File
	for other, g := range p.files {
		if other == name {
			g = f
		}
		files = append(files, g)
	}
	_, err = p.conf.Check(p.ImportPath, p.fset, files, nil)
	return err
}
