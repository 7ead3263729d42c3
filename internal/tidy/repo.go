package tidy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Module is the module path of the project.
const Module = "github.com/rowraft/rowraft"

// A Finding is one place that breaks a rule.
type Finding struct {
	Path string // slash-separated, relative to the root
	Line int    // 0 if the whole file or package is meant
	Rule string
	Msg  string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s:%d: %s (%s)", f.Path, f.Line, f.Msg, f.Rule)
}

// File is one Go file, whatever its build tags say.
type File struct {
	Path      string
	Dir       string // "" for the root package
	AST       *ast.File
	Lines     int
	Wide      []int // numbers of the lines that are too wide
	Test      bool
	Generated bool
}

// Repo is the parsed source of the module, in the order of its paths.
type Repo struct {
	Fset  *token.FileSet
	Files []*File
}

// A Rule looks at the syntax of the whole repository.
type Rule struct {
	Name  string
	Check func(*Repo) []Finding
}

// Rules are the rules that need no types; see Unit for those that do.
var Rules = []Rule{
	{"imports", checkImports},
	{"packagedoc", checkPackageDocs},
	{"exit", checkExit},
	{"version", checkVersion},
	{"sleep", checkSleep},
	{"raftconfig", checkRaftConfig},
	{"backend", checkBackend},
	{"determinism", checkDeterministicImports},
	{"size", checkSize},
	{"decoders", checkDecoders},
	{"logkeys", checkLogKeys},
	{"words", checkWords},
}

// skippedDir reports whether a directory holds no source of the project.
func skippedDir(name string) bool {
	switch name {
	case "bin", "testdata", "vendor", "node_modules":
		return true
	}
	return name != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_"))
}

// eachFile calls fn for each file below root whose name, or the extension of whose name, is in names. It leaves out
// what skippedDir names.
func eachFile(root string, names []string, fn func(rel string, text []byte) error) error {
	return filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != root && skippedDir(d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.Contains(names, filepath.Ext(p)) && !slices.Contains(names, d.Name()) {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		return fn(filepath.ToSlash(rel), text)
	})
}

// Load parses every Go file below root.
func Load(root string) (*Repo, error) {
	r := &Repo{Fset: token.NewFileSet()}
	err := eachFile(root, []string{".go"}, r.add)
	return r, err
}

// Parse makes a Repo of sources by path, for examples.
func Parse(sources map[string]string) (*Repo, error) {
	r := &Repo{Fset: token.NewFileSet()}
	var paths []string
	for p := range sources {
		paths = append(paths, p)
	}
	slices.Sort(paths)
	for _, p := range paths {
		if err := r.add(p, []byte(sources[p])); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func (r *Repo) add(name string, src []byte) error {
	f, err := parser.ParseFile(r.Fset, name, src, parser.ParseComments)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	if dir == "." {
		dir = ""
	}
	r.Files = append(r.Files, &File{
		Path: name, Dir: dir, AST: f,
		Lines:     strings.Count(string(src), "\n"),
		Wide:      wide(src),
		Test:      strings.HasSuffix(name, "_test.go"),
		Generated: ast.IsGenerated(f),
	})
	return nil
}

// Check runs every rule and drops what a //tidy:allow comment permits.
func (r *Repo) Check() []Finding {
	var out []Finding
	for _, rule := range Rules {
		out = append(out, rule.Check(r)...)
	}
	return slices.DeleteFunc(out, r.allowed)
}

func (r *Repo) finding(rule string, f *File, at ast.Node, format string, args ...any) Finding {
	line := 0
	if at != nil {
		line = r.Fset.Position(at.Pos()).Line
	}
	return Finding{Path: f.Path, Line: line, Rule: rule, Msg: fmt.Sprintf(format, args...)}
}

// allowed reports whether a comment in the file lets the finding pass.
func (r *Repo) allowed(x Finding) bool {
	for _, f := range r.Files {
		if f.Path == x.Path && allowedIn(r.Fset, f.AST, x.Rule, x.Line) {
			return true
		}
	}
	return false
}

// allowedIn looks for `//tidy:allow rule reason` on line or the one above. The
// reason is not optional.
func allowedIn(fset *token.FileSet, f *ast.File, rule string, line int) bool {
	for _, group := range f.Comments {
		for _, c := range group.List {
			words := strings.Fields(c.Text)
			if len(words) < 3 || words[0] != "//tidy:allow" || words[1] != rule {
				continue
			}
			if at := fset.Position(c.Pos()).Line; at == line || at == line-1 {
				return true
			}
		}
	}
	return false
}

// imports returns the import paths of a file with their nodes.
func imports(f *File) map[string]ast.Node {
	out := make(map[string]ast.Node)
	for _, spec := range f.AST.Imports {
		if p, err := strconv.Unquote(spec.Path.Value); err == nil {
			out[p] = spec
		}
	}
	return out
}

// importName returns the name under which a file knows a package, "" if it does
// not import it.
func importName(f *ast.File, pkg string) string {
	for _, spec := range f.Imports {
		p, err := strconv.Unquote(spec.Path.Value)
		if err != nil || p != pkg {
			continue
		}
		if spec.Name != nil {
			return spec.Name.Name
		}
		return path.Base(p)
	}
	return ""
}

// callsOf calls visit for each call pkg.Name(…) in the file.
func callsOf(f *ast.File, pkg string, visit func(call *ast.CallExpr, name string)) {
	local := importName(f, pkg)
	if local == "" || local == "_" {
		return
	}
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		sel, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if id, ok := sel.X.(*ast.Ident); ok && id.Name == local {
			visit(call, sel.Sel.Name)
		}
		return true
	})
}

// within reports whether dir is tree or lies below it.
func within(dir, tree string) bool {
	return dir == tree || strings.HasPrefix(dir, tree+"/")
}
