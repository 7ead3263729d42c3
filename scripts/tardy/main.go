// Command tardy writes copies of the module's sources in which goroutines are late, for the
// -overlay flag of go build: a program or test built with them meets orders of events that
// otherwise occur only on a busy machine.
//
//	go run ./scripts/tardy DIR
//	go test -overlay DIR/overlay.json ./node
//
// The copies have a call at each point where another goroutine may overtake: at the begin of a
// goroutine, after each case of a select that waits, and at the begin of a function with a
// context. The seed of a process selects its slow points, one in EVERY; a slow point sleeps the
// same time at each of its first visits, five seconds in all.
//
//	ROWRAFT_TARDY_SEED=1    0 or absent: no point is slow
//	ROWRAFT_TARDY_EVERY=20
//	ROWRAFT_TARDY_MAX=500ms the longest of the sleeps
//	ROWRAFT_TARDY_ONLY=A:7  this point alone, e.g. client/route.go:120
//	ROWRAFT_TARDY_LOG=FILE  appends each point that sleeps, once, to FILE
//
// Tests stay unchanged, and so do packages without goroutines: those below proto, optim, wire
// and shard/rowstore.
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rowraft/rowraft/internal/tidy"
)

//go:embed sleep.go.txt
var sleeper string

var leftOut = []string{"proto", "optim", "wire", "shard/rowstore", "scripts", "internal/tidy"}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: tardy DIR")
		os.Exit(2)
	}
	if err := run(".", os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "tardy:", err)
		os.Exit(1)
	}
}

// run writes the copies of the module at root, and DIR/overlay.json.
func run(root, dir string) error {
	repo, err := tidy.Load(root)
	if err != nil {
		return err
	}
	packages := map[string][]*tidy.File{}
	for _, f := range repo.Files {
		out := func(tree string) bool { return strings.HasPrefix(f.Path, tree+"/") }
		if !f.Test && !slices.ContainsFunc(leftOut, out) {
			packages[f.Dir] = append(packages[f.Dir], f)
		}
	}
	replace := map[string]string{}
	put := func(original, text string) error {
		abs, err := filepath.Abs(filepath.Join(root, original))
		if err != nil {
			return err
		}
		to, err := filepath.Abs(filepath.Join(dir, original))
		if err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		replace[abs] = to
		return os.WriteFile(to, []byte(text), 0o644)
	}
	for at, files := range packages {
		changed, err := copies(root, repo.Fset, files, put)
		if err != nil {
			return err
		}
		if changed {
			if err := put(path.Join(at, "tardy_sleep.go"), "package "+files[0].AST.Name.Name+"\n"+sleeper); err != nil {
				return err
			}
		}
	}
	list, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o644)
}

// copies calls put with each file of a package that has points.
func copies(root string, fset *token.FileSet, files []*tidy.File,
	put func(original, text string) error) (changed bool, err error) {
	started := map[string]bool{} // functions that a go statement starts by name
	for _, f := range files {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			for _, by := range starts(n) {
				switch by := by.(type) {
				case *ast.Ident:
					started[by.Name] = true
				case *ast.SelectorExpr:
					started[by.Sel.Name] = true
				}
			}
			return true
		})
	}
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(root, f.Path))
		if err != nil {
			return false, err
		}
		if out := insert(fset, f.Path, text, points(f.AST, started)); out != "" {
			changed = true
			if err := put(f.Path, out); err != nil {
				return false, err
			}
		}
	}
	return changed, nil
}

// starts returns the functions that n runs in a goroutine.
func starts(n ast.Node) []ast.Expr {
	switch n := n.(type) {
	case *ast.GoStmt:
		return []ast.Expr{n.Call.Fun}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && (f.Sel.Name == "Go" || f.Sel.Name == "AfterFunc") {
			return n.Args
		}
	}
	return nil
}

// points returns the positions after which a call can be inserted.
func points(f *ast.File, started map[string]bool) (at []token.Pos) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Body != nil && n.Name.Name != "init" && (started[n.Name.Name] || hasContext(n.Type)) {
				at = append(at, n.Body.Lbrace)
			}
		case *ast.SelectStmt:
			at = append(at, cases(n)...)
		}
		for _, by := range starts(n) {
			if lit, ok := by.(*ast.FuncLit); ok {
				at = append(at, lit.Body.Lbrace)
			}
		}
		return true
	})
	return at
}

// cases returns the cases of a select that waits. A select with a default may run under a mutex.
func cases(s *ast.SelectStmt) (at []token.Pos) {
	for _, c := range s.Body.List {
		if c.(*ast.CommClause).Comm == nil {
			return nil
		}
		at = append(at, c.(*ast.CommClause).Colon)
	}
	return at
}

func hasContext(f *ast.FuncType) bool {
	if len(f.Params.List) == 0 {
		return false
	}
	s, ok := f.Params.List[0].Type.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Context"
}

// insert inserts calls after the points, on the same lines; it returns "" if there are none.
func insert(fset *token.FileSet, name string, text []byte, at []token.Pos) string {
	if len(at) == 0 {
		return ""
	}
	slices.Sort(at)
	var b strings.Builder
	done := 0
	for _, p := range slices.Compact(at) {
		where := fset.Position(p)
		b.Write(text[done : where.Offset+1])
		fmt.Fprintf(&b, " tardySleep(%q);", fmt.Sprintf("%s:%d", name, where.Line))
		done = where.Offset + 1
	}
	b.Write(text[done:])
	return b.String()
}
