package main

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

const (
	// switchVar is the number of the mutant that is on, in each woven package.
	switchVar = "hawserMutant"
	// switchMark precedes that number in the program's name: processes that the
	// tests start of themselves have it, too, whatever their environment.
	switchMark = "-mutant"
)

// switchFile is the source that a woven package gets beside its own.
func switchFile(pkg string) []byte {
	return fmt.Appendf(nil, `package %s

import (
	"os"
	"strconv"
	"strings"
)

var %s = func() int {
	program, _ := os.Executable()
	number := strings.LastIndex(program, %[3]q)
	if number < 0 {
		return 0
	}
	n, _ := strconv.Atoi(program[number+len(%[3]q):])
	return n
}()
`, pkg, switchVar, switchMark)
}

// numbered is a mutant with its number.
type numbered struct {
	n int
	mutant
}

// weave returns a file that holds the mutants beside the original, so that one
// build serves all of them: a function with mutants begins with a switch, and
// each mutant is a copy of it under another name.
func weave(src []byte, ms []numbered) ([]byte, error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "", src, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	offset := func(p token.Pos) int { return fset.Position(p).Offset }
	text := func(n ast.Node) string { return string(src[offset(n.Pos()):offset(n.End())]) }

	cases := map[*ast.FuncDecl]string{}
	var copies bytes.Buffer
	for _, m := range ms {
		f, body, err := m.within(src, file, offset)
		if err != nil {
			return nil, err
		}
		name := fmt.Sprintf("%s_mutant%d", f.Name.Name, m.n)
		fmt.Fprintf(&copies, "\n%s %s\n", signature(f, name, text), body)
		call := callOf(f, name)
		if f.Type.Results.NumFields() > 0 {
			call = "return " + call
		} else {
			call += "; return"
		}
		cases[f] += fmt.Sprintf("case %d: %s\n", m.n, call)
	}
	var out bytes.Buffer
	at := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || cases[f] == "" {
			continue
		}
		out.Write(src[at:offset(f.Pos())])
		fmt.Fprintf(&out, "%s {\nswitch %s {\n%s}\n", signature(f, f.Name.Name, text), switchVar, cases[f])
		at = offset(f.Body.Lbrace) + 1
	}
	out.Write(src[at:])
	out.Write(copies.Bytes())
	return out.Bytes(), nil
}

// within finds the function that the mutant changes, and its body as it becomes.
func (m mutant) within(src []byte, file *ast.File, offset func(token.Pos) int) (*ast.FuncDecl, string, error) {
	if n := bytes.Count(src, []byte(m.old)); n != 1 {
		return nil, "", fmt.Errorf("%w: the text to replace is in %s %d times", errStale, m.file, n)
	}
	if m.old == m.new {
		return nil, "", fmt.Errorf("%w: it changes nothing", errStale)
	}
	from := bytes.Index(src, []byte(m.old))
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil || from < offset(f.Pos()) || from+len(m.old) > offset(f.End()) {
			continue
		}
		whole := strings.Replace(string(src[offset(f.Pos()):offset(f.End())]), m.old, m.new, 1)
		head := string(src[offset(f.Pos()):offset(f.Body.Lbrace)])
		body, same := strings.CutPrefix(whole, head)
		if !same {
			return nil, "", fmt.Errorf("%s: it changes a signature", m.name)
		}
		return f, body, nil
	}
	return nil, "", fmt.Errorf("%s: its text is in no function", m.name)
}

var errStale = errors.New("stale")

// signature is the function's, under a name, with a name for each parameter.
func signature(f *ast.FuncDecl, name string, text func(ast.Node) string) string {
	var b strings.Builder
	b.WriteString("func ")
	if f.Recv != nil {
		fmt.Fprintf(&b, "(%s %s) ", receiver(f), text(f.Recv.List[0].Type))
	}
	b.WriteString(name)
	if f.Type.TypeParams != nil {
		b.WriteString(text(f.Type.TypeParams))
	}
	var params []string
	names := parameters(f)
	for _, p := range f.Type.Params.List {
		for range max(1, len(p.Names)) {
			params = append(params, names[len(params)]+" "+text(p.Type))
		}
	}
	fmt.Fprintf(&b, "(%s)", strings.Join(params, ", "))
	if f.Type.Results != nil {
		b.WriteString(" " + text(f.Type.Results))
	}
	return b.String()
}

// callOf is a call of the function under another name with its own arguments.
func callOf(f *ast.FuncDecl, name string) string {
	args := parameters(f)
	if l := f.Type.Params.List; len(l) > 0 {
		if _, variadic := l[len(l)-1].Type.(*ast.Ellipsis); variadic {
			args[len(args)-1] += "..."
		}
	}
	if f.Recv != nil {
		name = receiver(f) + "." + name
	}
	if f.Type.TypeParams != nil {
		var types []string
		for _, t := range f.Type.TypeParams.List {
			for _, n := range t.Names {
				types = append(types, n.Name)
			}
		}
		name += "[" + strings.Join(types, ", ") + "]"
	}
	return name + "(" + strings.Join(args, ", ") + ")"
}

// parameters returns the parameters' names; those without get one.
func parameters(f *ast.FuncDecl) (names []string) {
	for _, p := range f.Type.Params.List {
		list := p.Names
		if len(list) == 0 {
			list = []*ast.Ident{{Name: "_"}}
		}
		for _, n := range list {
			names = append(names, named(n.Name, len(names)))
		}
	}
	return names
}

func receiver(f *ast.FuncDecl) string {
	if names := f.Recv.List[0].Names; len(names) > 0 {
		return named(names[0].Name, -1)
	}
	return named("_", -1)
}

func named(name string, i int) string {
	if name == "_" {
		return fmt.Sprintf("hawser%d", i+1)
	}
	return name
}

// byFile groups mutants by their files, in order.
func byFile(ms []numbered) (files []string, in map[string][]numbered) {
	in = map[string][]numbered{}
	for _, m := range ms {
		in[m.file] = append(in[m.file], m)
	}
	for f := range in {
		files = append(files, f)
	}
	slices.Sort(files)
	return files, in
}
