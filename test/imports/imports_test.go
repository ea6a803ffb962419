package imports

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hawser-transport/hawser"

type listed struct {
	ImportPath, Dir  string
	GoFiles, Imports []string
}

func list(t *testing.T) []listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Imports", module+"/...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// under reports whether an import path is a package or below it, both given
// relative to the module.
func under(path, dir string) bool {
	path = strings.TrimPrefix(path, module+"/")
	return path == dir || strings.HasPrefix(path, dir+"/")
}

func own(path string) bool { return path == module || strings.HasPrefix(path, module+"/") }

// rules say what packages below a folder may import of this module.
var rules = []struct {
	from    string
	allowed []string
}{
	{"sdk", []string{"sdk"}},
	{"internal", []string{"internal"}},
	{"plugins", []string{"sdk", "plugins", "internal/cuda"}},
	{"engine", []string{"sdk", "engine", "internal/cuda"}},
	{"cmd", []string{"engine", "cmd"}},
	{"examples/transport", []string{"sdk", "examples/transport"}},
	{"examples/embed", []string{"engine"}},
	{"examples/kvtransfer", []string{"engine"}},
}

// fault says what is wrong with one package importing another, or nothing.
func fault(from, to string) string {
	for _, r := range rules {
		if !own(to) || !under(from, r.from) {
			continue
		}
		ok := false
		for _, a := range r.allowed {
			ok = ok || under(to, a)
		}
		if !ok {
			return r.from + " may import only " + strings.Join(r.allowed, ", ")
		}
	}
	goPlugin := to == "github.com/hashicorp/go-plugin" || strings.HasPrefix(to, "github.com/hashicorp/go-plugin/") || to == "github.com/hashicorp/go-hclog"
	if goPlugin && under(from, "engine") && !under(from, "engine/internal/pluginhost") {
		return "in engine only pluginhost touches go-plugin"
	}
	if under(from, "sdk/mapping") && !own(to) && strings.Contains(to, ".") {
		return "sdk/mapping knows no driver: it may import only sdk and the standard library"
	}
	if under(to, "internal/cuda") && !under(from, "internal/cuda") && !under(from, "engine/cuda") && !under(from, "plugins/mnnvl") {
		return "the CUDA driver is for plugins/mnnvl, and for those embedders that ask for engine/cuda"
	}
	if under(to, "engine/cuda") && (under(from, "engine") && !under(from, "engine/cuda") || under(from, "cmd")) {
		return "engine/cuda is for those embedders that ask for it: others do not link the CUDA driver's loader"
	}
	if under(from, "plugins") {
		rest := strings.TrimPrefix(from, module+"/plugins/")
		plugin, _, _ := strings.Cut(rest, "/")
		if own(to) && under(to, "plugins") && !under(to, "plugins/"+plugin) && !under(to, "plugins/internal") {
			return "a plugin may not import another one"
		}
	}
	return ""
}

func TestDependencyRule(t *testing.T) {
	seen := 0
	for _, p := range list(t) {
		for _, to := range p.Imports {
			seen++
			if f := fault(p.ImportPath, to); f != "" {
				t.Errorf("%s imports %s: %s", p.ImportPath, to, f)
			}
		}
	}
	if seen < 100 {
		t.Fatalf("only %d imports were looked at", seen)
	}
}

// The rule itself can fail.
func TestDependencyRuleFindsFaults(t *testing.T) {
	for _, c := range []struct{ from, to string }{
		{"sdk", "engine"}, {"sdk/internal/link", "plugins/tcp"}, {"plugins/tcp", "engine"},
		{"engine/internal/outbox", "plugins/tcp"}, {"plugins/tcp/x", "plugins/rpcfallback/y"}, {"cmd/hawser", "sdk"},
		{"examples/embed", "sdk"}, {"engine", "internal/cuda"}, {"plugins/tcp", "internal/cuda/libcuda"}, {"internal/cuda", "sdk"},
		{"engine", "engine/cuda"}, {"cmd/hawser", "engine/cuda"},
	} {
		if fault(module+"/"+c.from, module+"/"+c.to) == "" {
			t.Errorf("%s importing %s passes", c.from, c.to)
		}
	}
	if fault(module+"/sdk/mapping", "github.com/ebitengine/purego") == "" || fault(module+"/sdk/mapping", "sync/atomic") != "" {
		t.Error("the rule for mappings is off")
	}
	if fault(module+"/engine", "github.com/hashicorp/go-plugin") == "" || fault(module+"/engine/internal/pluginhost", "github.com/hashicorp/go-plugin") != "" {
		t.Error("the rule for go-plugin is off")
	}
}

// foreign are the packages none of whose types may be in an exported signature
// of engine or sdk.
func foreign(path string) bool {
	return strings.HasPrefix(path, "google.golang.org/grpc") || strings.HasPrefix(path, "google.golang.org/protobuf") ||
		strings.HasPrefix(path, "github.com/hashicorp/go-hclog") || strings.HasSuffix(path, "/pb")
}

func TestNoForeignTypesInSignatures(t *testing.T) {
	files := 0
	for _, p := range list(t) {
		// sdk/internal is where the contract's own gRPC is.
		if !under(p.ImportPath, "engine") && !under(p.ImportPath, "sdk") || under(p.ImportPath, "sdk/internal") || strings.HasSuffix(p.ImportPath, "/pb") {
			continue
		}
		for _, name := range p.GoFiles {
			files++
			for _, f := range signatureFaults(t, filepath.Join(p.Dir, name), nil) {
				t.Errorf("%s/%s: %s", p.ImportPath, name, f)
			}
		}
	}
	if files < 30 {
		t.Fatalf("only %d files were looked at", files)
	}
}

func TestForeignTypesAreFound(t *testing.T) {
	src := `package x
import ("google.golang.org/grpc"; h "github.com/hashicorp/go-hclog")
type T struct{ C *grpc.ClientConn; hidden h.Logger }
func (T) M(h.Logger) {}
func F() []grpc.DialOption { return nil }
func f(grpc.DialOption) {}
type hidden struct{ C grpc.CallOption }
func (hidden) M(grpc.CallOption) {}
`
	if got := signatureFaults(t, "x.go", src); len(got) != 3 {
		t.Errorf("found %q, want 3 faults", got)
	}
}

// signatureFaults returns the exported declarations of a file that use a
// foreign type.
func signatureFaults(t *testing.T, file string, src any) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		if foreign(path) {
			names[name] = path
		}
	}
	var faults []string
	check := func(what string, n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if field, ok := n.(*ast.Field); ok && len(field.Names) > 0 && allHidden(field.Names) {
				return false
			}
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && names[x.Name] != "" {
					faults = append(faults, what+" uses "+names[x.Name]+"."+s.Sel.Name)
				}
			}
			return true
		})
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || receiverExported(d.Recv)) {
				checkFunc(d, check)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if ts, ok := s.(*ast.TypeSpec); ok && ts.Name.IsExported() {
					check("type "+ts.Name.Name, ts.Type)
				}
				if vs, ok := s.(*ast.ValueSpec); ok && vs.Type != nil && vs.Names[0].IsExported() {
					check("var "+vs.Names[0].Name, vs.Type)
				}
			}
		}
	}
	return faults
}

func checkFunc(d *ast.FuncDecl, check func(string, ast.Node)) {
	// Parameters' names are lower case: look at their types alone.
	for _, list := range []*ast.FieldList{d.Type.Params, d.Type.Results} {
		if list == nil {
			continue
		}
		for _, field := range list.List {
			check("func "+d.Name.Name, field.Type)
		}
	}
}

func allHidden(names []*ast.Ident) bool {
	for _, n := range names {
		if n.IsExported() {
			return false
		}
	}
	return true
}

func receiverExported(l *ast.FieldList) bool {
	typ := l.List[0].Type
	if s, ok := typ.(*ast.StarExpr); ok {
		typ = s.X
	}
	if x, ok := typ.(*ast.IndexExpr); ok {
		typ = x.X
	}
	id, ok := typ.(*ast.Ident)
	return ok && id.IsExported()
}
