package tidy

import (
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/doc/comment"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// A CodeBlock is Go code that a Markdown page or a package comment shows.
type CodeBlock struct {
	Where string // page:line, or the file of the package comment
	Self  string // import path of the package whose comment it is; "" in a page
	Text  string // a whole file, or statements
}

// standard are the packages of the standard library that statements may use without an import.
var standard = []string{"context", "errors", "fmt", "io", "log", "math", "os", "slices", "strings", "time"}

// CodeBlocks lists the Go code of all Markdown pages and package comments. In a page it is a block of
// kind `go`. In a package comment it is a block that parses as statements with an assignment: the other
// blocks there are drawings and lists.
func CodeBlocks(root string, r *Repo) ([]CodeBlock, error) {
	var out []CodeBlock
	err := eachFile(root, []string{".md"}, func(page string, b []byte) error {
		line, rest := 1, string(b)
		for {
			before, after, found := strings.Cut(rest, "```go\n")
			if !found {
				return nil
			}
			line += strings.Count(before, "\n") + 1
			text, end, closed := strings.Cut(after, "```")
			if !closed {
				return fmt.Errorf("%s:%d: the code block has no end", page, line)
			}
			out = append(out, CodeBlock{Where: fmt.Sprintf("%s:%d", page, line), Text: text})
			line, rest = line+strings.Count(text, "\n"), end
		}
	})
	if err != nil {
		return nil, err
	}
	for _, f := range r.Files {
		if f.AST.Doc == nil || f.Test {
			continue
		}
		for _, b := range new(comment.Parser).Parse(f.AST.Doc.Text()).Content {
			if c, ok := b.(*comment.Code); ok && assigns(c.Text) {
				out = append(out, CodeBlock{Where: f.Path, Self: strings.TrimSuffix(Module+"/"+f.Dir, "/"), Text: c.Text})
			}
		}
	}
	return out, nil
}

// assigns reports whether text is a list of statements, one of which is an assignment of a call.
func assigns(text string) (found bool) {
	f, err := parser.ParseFile(token.NewFileSet(), "", "package p\nfunc _() {\n"+text+"\n}", 0)
	if err != nil {
		return false
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok {
			_, call := a.Rhs[0].(*ast.CallExpr)
			found = found || call
		}
		return true
	})
	return found
}

// CheckCodeBlocks type-checks blocks and lists what is wrong with them. Statements may use variables that they
// do not declare, and may leave variables unused: a reader sees what these are. It needs the go command, for
// the export data of the packages that the blocks import.
func CheckCodeBlocks(root string, r *Repo, blocks []CodeBlock) ([]string, error) {
	packages := make(map[string]string) // name → import path
	for _, name := range standard {
		packages[name] = name
	}
	for _, f := range r.Files {
		if !f.Test && f.AST.Name.Name != "main" {
			packages[f.AST.Name.Name] = strings.TrimSuffix(Module+"/"+f.Dir, "/")
		}
	}
	fset := token.NewFileSet()
	var wrong []string
	var files []*ast.File
	var imported []string
	for _, b := range blocks {
		f, err := b.file(fset, packages)
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", b.Where, err))
		} else {
			for _, s := range f.Imports {
				imported = append(imported, strings.Trim(s.Path.Value, `"`))
			}
		}
		files = append(files, f)
	}
	lookup, err := exportData(root, imported)
	if err != nil {
		return nil, err
	}
	imports := importer.ForCompiler(fset, "gc", lookup)
	for i, f := range files {
		if f == nil {
			continue
		}
		check := types.Config{Importer: imports, Error: func(err error) {
			e, ok := errors.AsType[types.Error](err)
			name, undefined := strings.CutPrefix(e.Msg, "undefined: ")
			if !ok || !e.Soft && (!undefined || strings.Contains(name, ".")) {
				wrong = append(wrong, fmt.Sprintf("%s: %v", blocks[i].Where, e.Msg))
			}
		}}
		_, _ = check.Check("p", fset, []*ast.File{f}, nil) // Error has them
	}
	return wrong, nil
}

// file parses b. Statements become a function in a file that imports what they use.
func (b *CodeBlock) file(fset *token.FileSet, packages map[string]string) (*ast.File, error) {
	if f, err := parser.ParseFile(fset, b.Where, b.Text, 0); err == nil {
		return f, nil
	}
	body := "func _() {\n" + b.Text + "\n}\n"
	f, err := parser.ParseFile(token.NewFileSet(), b.Where, "package p\n"+body, 0)
	if err != nil {
		return nil, err
	}
	uses := make(map[string]string)
	if b.Self != "" {
		packages = withSelf(packages, b.Self)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Obj == nil && packages[x.Name] != "" {
				uses[x.Name] = packages[x.Name]
			}
		}
		return true
	})
	var head bytes.Buffer
	head.WriteString("package p\n")
	for name, p := range sorted(uses) {
		fmt.Fprintf(&head, "import %s %q\n", name, p)
	}
	return parser.ParseFile(fset, b.Where, head.String()+body, 0)
}

// withSelf returns packages with the package of self under its own name.
func withSelf(packages map[string]string, self string) map[string]string {
	out := maps.Clone(packages)
	out[self[strings.LastIndexByte(self, '/')+1:]] = self
	return out
}

// exportData returns what opens the export data of packages and of all that these import.
func exportData(root string, packages []string) (func(path string) (io.ReadCloser, error), error) {
	slices.Sort(packages)
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"},
		slices.Compact(packages)...)...)
	cmd.Dir = root
	cmd.Stderr = new(bytes.Buffer)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -export: %w: %s", err, cmd.Stderr)
	}
	at := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		p, file, _ := strings.Cut(strings.TrimSpace(line), "\t")
		at[p] = file
	}
	return func(path string) (io.ReadCloser, error) {
		if at[path] == "" {
			return nil, fmt.Errorf("no export data for %s", path)
		}
		return os.Open(at[path])
	}, nil
}
