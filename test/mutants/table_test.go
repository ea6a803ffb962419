package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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
	"slices"
	"testing"
)

const root = "../.."

// TestMutantsCanBeTried wants every entry of the table to be one that a run
// could try: its text is in its file exactly once, what it becomes compiles,
// and the tests exist. A run would say the same, much later.
func TestMutantsCanBeTried(t *testing.T) {
	packages := load(t)
	names := map[string]bool{}
	in := map[string][]numbered{} // by folder
	for i, m := range mutants {
		if names[m.name] {
			t.Errorf("%s: two mutants have this name", m.name)
		}
		names[m.name] = true
		dir := filepath.Dir(m.file)
		if src, err := os.ReadFile(filepath.Join(root, m.file)); err != nil {
			t.Errorf("%s: %v", m.name, err)
		} else if _, err := weave(src, []numbered{{i, m}}); err != nil {
			t.Errorf("%s: %v", m.name, err)
		} else {
			in[dir] = append(in[dir], numbered{i, m})
		}
		tests, _, _ := m.aim()
		for _, test := range tests {
			if p := packages[m.pkg]; p == nil || !p.tests[test] {
				t.Errorf("%s: %s has no %s", m.name, m.pkg, test)
			}
		}
	}
	for dir, ms := range in {
		if packages[dir].check(ms) == nil {
			continue
		}
		for _, m := range ms { // one of these
			if err := packages[dir].check([]numbered{m}); err != nil {
				t.Errorf("%s: what %s becomes does not compile: %v", m.name, m.file, err)
			}
		}
	}
}

// TestFaultyMutantsAreNoticed is for what TestMutantsCanBeTried relies on.
func TestFaultyMutantsAreNoticed(t *testing.T) {
	const file = "engine/internal/dedup/window.go"
	src, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	p := load(t)["engine/internal/dedup"]
	const line = "\tw.cum = floor - 1\n"
	for what, c := range map[string]struct {
		old, new string
		stale    bool
	}{
		"a text that is there often": {"return", "", true},
		"a text that is not there":   {"not there", "", true},
		"no change":                  {line, line, true},
		"a signature":                {"(floor uint64)", "(floor uint32)", false},
		"no function":                {"package dedup", "package other", false},
		"syntax":                     {line, "}", false},
		"an unused variable":         {line, "x := 1\n", false},
		"a type":                     {line, "w.cum = \"\"\n", false},
	} {
		m := []numbered{{1, mutant{file: file, old: c.old, new: c.new}}}
		_, err := weave(src, m)
		if err == nil {
			err = p.check(m)
		}
		if err == nil || errors.Is(err, errStale) != c.stale {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := p.check([]numbered{{1, mutant{file: file, old: line, new: ""}}, {2, mutant{file: file, old: line, new: "\tw.cum = 0\n"}}}); err != nil {
		t.Errorf("two good ones: %v", err)
	}
}

// TestWeave is for the forms that functions have.
func TestWeave(t *testing.T) {
	const src = `package p

func (q *Queue[T]) Get(_ int, more ...string) (a, b error) { return one(), nil }

func sum[K comparable, V any](m map[K]V, _, n int) int {
	two()
	return n
}

func (Zero) Nothing() { three() }
`
	out, err := weave([]byte(src), []numbered{
		{1, mutant{old: "one()", new: "other()"}}, {2, mutant{old: "two()", new: ""}},
		{3, mutant{old: "three()", new: ""}}, {4, mutant{old: "three()", new: "four()"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"case 1: return q.Get_mutant1(hawser1, more...)\n",
		"func (q *Queue[T]) Get_mutant1(hawser1 int, more ...string) (a, b error) { return other(), nil }",
		"case 2: return sum_mutant2[K, V](m, hawser2, n)\n",
		"func sum_mutant2[K comparable, V any](m map[K]V, hawser2 int, n int) int {",
		"case 3: hawser0.Nothing_mutant3(); return\ncase 4: hawser0.Nothing_mutant4(); return\n",
		"func (hawser0 Zero) Nothing_mutant4() { four() }",
	} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, err := parser.ParseFile(token.NewFileSet(), "", out, 0); err != nil {
		t.Error(err)
	}
}

// pkg is what `go list` says of a package, and more.
type pkg struct {
	Dir, ImportPath, Export            string
	GoFiles, TestGoFiles, XTestGoFiles []string
	ImportMap                          map[string]string

	fset  *token.FileSet
	files map[string]*ast.File
	tests map[string]bool
	conf  types.Config
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
	cmd := exec.Command("go", append(args, slices.Sorted(maps.Keys(dirs))...)...)
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
		p := &pkg{}
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
		p.read(t, exports)
	}
	return packages
}

var testName = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w*)\(`)

// read parses the package's files and finds its tests.
func (p *pkg) read(t *testing.T, exports map[string]string) {
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
		return os.Open(exports[path])
	})
}

// check type-checks the package with mutants woven into it.
func (p *pkg) check(ms []numbered) error {
	if p == nil {
		return errors.New("its package is not there")
	}
	files := maps.Clone(p.files)
	names, in := byFile(ms)
	for _, name := range names {
		src, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		woven, err := weave(src, in[name])
		if err != nil {
			return err
		}
		if files[filepath.Base(name)] == nil {
			return fmt.Errorf("%s is not of the package on linux", name)
		}
		if files[filepath.Base(name)], err = parser.ParseFile(p.fset, name, woven, parser.SkipObjectResolution); err != nil {
			return err
		}
		f := files[filepath.Base(name)]
		if files["zz_mutant.go"], err = parser.ParseFile(p.fset, "zz_mutant.go", switchFile(f.Name.Name), parser.SkipObjectResolution); err != nil {
			return err
		}
	}
	_, err := p.conf.Check(p.ImportPath, p.fset, slices.Collect(maps.Values(files)), nil)
	return err
}
