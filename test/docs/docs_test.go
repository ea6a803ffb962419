package docs

import (
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated parts of the documents")

const root = "../.."

// documents returns the text of every document by its path from the root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob(root + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, root+"/README.md", root+"/CONTRIBUTING.md")
	docs := map[string]string{}
	for _, f := range files {
		docs[strings.TrimPrefix(f, root+"/")] = read(t, f)
	}
	if len(docs) < 9 {
		t.Fatalf("only %d documents", len(docs))
	}
	return docs
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var (
	fence   = regexp.MustCompile("(?ms)^```([^\n]*)\n(.*?)^```$")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// block is a fenced block: the words after the fence, and what is in it.
type block struct {
	info, body string
	before     string // the line before the fence
}

func blocks(doc string) []block {
	var list []block
	for _, m := range fence.FindAllStringSubmatchIndex(doc, -1) {
		before := strings.TrimRight(doc[:m[0]], "\n")
		before = before[strings.LastIndexByte(before, '\n')+1:]
		list = append(list, block{doc[m[2]:m[3]], doc[m[4]:m[5]], before})
	}
	return list
}

// anchors are the fragments that the headings of a document make.
func anchors(doc string) []string {
	var list []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(doc, ""), -1) {
		kept := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(kept, " ", "-"))
	}
	return list
}

func TestLinksResolve(t *testing.T) {
	docs, n := documents(t), 0
	for name, doc := range docs {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(doc, ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			n++
			path, fragment, _ := strings.Cut(m[1], "#")
			target := name
			if path != "" {
				target = filepath.Join(filepath.Dir(name), path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s: %v", name, m[1], err)
			} else if fragment != "" && !slices.Contains(anchors(docs[target]), fragment) {
				t.Errorf("%s links to %s: no such heading", name, m[1])
			}
		}
	}
	if n < 10 {
		t.Errorf("only %d links", n)
	}
}

// A path in backquotes that looks like one of ours is one.
func TestPathsExist(t *testing.T) {
	path := regexp.MustCompile("`((?:cmd|docs|engine|examples|plugins|sdk|test)/[A-Za-z0-9_./-]+)`")
	for name, doc := range documents(t) {
		for _, m := range path.FindAllStringSubmatch(doc, -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s: %v", name, m[1], err)
			}
		}
	}
}

// TestShownFiles compares blocks after `<!-- file: PATH -->` with the file, or
// after `<!-- file: PATH func NAME -->` with that function of it.
func TestShownFiles(t *testing.T) {
	mark := regexp.MustCompile(`^<!-- file: (\S+)(?: func (\w+))? -->$`)
	shown := map[string]bool{}
	for name, doc := range documents(t) {
		fresh := doc
		for _, b := range blocks(doc) {
			m := mark.FindStringSubmatch(b.before)
			if m == nil {
				continue
			}
			shown[m[1]] = true
			want := read(t, filepath.Join(root, m[1]))
			if m[2] != "" {
				want = function(t, want, m[2])
			}
			if b.body != want {
				old := b.before + "\n```" + b.info + "\n" + b.body + "```"
				fresh = strings.Replace(fresh, old, b.before+"\n```"+b.info+"\n"+want+"```", 1)
			}
		}
		settle(t, name, doc, fresh)
	}
	for _, f := range []string{"examples/embed/main.go", "examples/kvtransfer/decode.go", "examples/transport/main.go"} {
		if !shown[f] {
			t.Errorf("no document shows %s", f)
		}
	}
}

// settle reports that a document differs from what it should be, or with
// -update rewrites it.
func settle(t *testing.T, name, is, want string) {
	t.Helper()
	if is == want {
		return
	}
	if !*update {
		t.Errorf("%s is not up to date: run `go test ./test/docs -update`", name)
		return
	}
	if err := os.WriteFile(filepath.Join(root, name), []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// function returns the source of a function, without its comment.
func function(t *testing.T, src, name string) string {
	t.Helper()
	m := regexp.MustCompile(`(?ms)^func ` + name + `\(.*?^}\n`).FindString(src)
	if m == "" {
		t.Fatalf("no func %s", name)
	}
	return m
}

func TestMakeTargetsExist(t *testing.T) {
	makefile, n := read(t, root+"/Makefile"), 0
	targets := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	named := regexp.MustCompile("(?m)(?:`|^    )make ([a-z-]+)")
	for name, doc := range documents(t) {
		for _, m := range named.FindAllStringSubmatch(doc, -1) {
			n++
			if !targets[m[1]] {
				t.Errorf("%s names `make %s`, which is no target", name, m[1])
			}
		}
	}
	for target := range targets {
		if !strings.Contains(read(t, root+"/README.md")+read(t, root+"/docs/testing.md"), "make "+target) {
			t.Errorf("no document names `make %s`", target)
		}
	}
	if n < 10 {
		t.Errorf("only %d targets are named", n)
	}
}

// Tests and fuzz targets that are named in backquotes exist.
func TestNamedTestsExist(t *testing.T) {
	exist := testFunctions(t)
	for name, doc := range documents(t) {
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`").FindAllStringSubmatch(doc, -1) {
			if !slices.ContainsFunc(exist, func(f string) bool {
				return f == m[1] || strings.HasPrefix(f, m[1]) && strings.HasPrefix(m[1], "TestFact")
			}) {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
}

func testFunctions(t *testing.T) []string {
	t.Helper()
	var names []string
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), "."):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			for _, m := range declared.FindAllStringSubmatch(read(t, path), -1) {
				names = append(names, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// Nothing of the machine that a document was written on is in it.
func TestNothingOfThisMachine(t *testing.T) {
	here, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	bad := []string{here}
	if home, err := os.UserHomeDir(); err == nil && len(home) > 1 {
		bad = append(bad, home+"/")
	}
	for name, doc := range documents(t) {
		for _, b := range bad {
			if strings.Contains(doc, b) {
				t.Errorf("%s says %q", name, b)
			}
		}
	}
}
