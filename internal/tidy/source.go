package tidy

import (
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
)

// checkPackageDocs wants "Package x …" of every package and "Command x …" of
// every command, in doc.go unless the package has one file.
func checkPackageDocs(r *Repo) []Finding {
	const rule = "packagedoc"
	type pkg struct {
		files []*File
		docs  []*File
	}
	pkgs := make(map[string]*pkg)
	for _, f := range r.Files {
		if f.Test || f.Generated {
			continue
		}
		p := pkgs[f.Dir]
		if p == nil {
			p = &pkg{}
			pkgs[f.Dir] = p
		}
		p.files = append(p.files, f)
		if f.AST.Doc != nil {
			p.docs = append(p.docs, f)
		}
	}
	var out []Finding
	for dir, p := range sorted(pkgs) {
		first := p.files[0]
		name := first.AST.Name.Name
		switch name {
		case "util", "utils", "common", "types", "errors", "helpers", "misc":
			out = append(out, r.finding(rule, first, first.AST.Name, "package %s: a package is a noun with one job", name))
		}
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + path.Base(dir) + " "
		}
		switch {
		case len(p.docs) == 0:
			out = append(out, r.finding(rule, first, first.AST.Name, "no package comment: say what it is: // %s…", want))
		case len(p.docs) > 1:
			out = append(out, r.finding(rule, p.docs[1], p.docs[1].AST.Name, "a second package comment, the first is in %s",
				p.docs[0].Path))
		default:
			doc := p.docs[0]
			text := strings.Join(strings.Fields(doc.AST.Doc.Text()), " ")
			if !strings.HasPrefix(text, want) || !strings.ContainsAny(text, ".:") {
				out = append(out, r.finding(rule, doc, doc.AST.Doc, "the package comment's first sentence must start with %q",
					want))
			}
			if name != "main" && len(p.files) > 1 && path.Base(doc.Path) != "doc.go" {
				out = append(out, r.finding(rule, doc, doc.AST.Doc, "the package comment belongs in doc.go"))
			}
		}
	}
	return out
}

// checkExit leaves ending the process to main packages. Tests may: a test binary
// that runs itself as a child must.
func checkExit(r *Repo) []Finding {
	var out []Finding
	for _, f := range r.Files {
		if f.Test || f.AST.Name.Name == "main" {
			continue
		}
		for _, bad := range []struct{ pkg, prefix string }{
			{"os", "Exit"}, {"syscall", "Exit"}, {"golang.org/x/sys/unix", "Exit"}, {"log", "Fatal"}, {"log", "Panic"},
		} {
			callsOf(f.AST, bad.pkg, func(call *ast.CallExpr, name string) {
				if strings.HasPrefix(name, bad.prefix) {
					out = append(out, r.finding("exit", f, call, "calls %s.%s: return an error; only a main package ends a process",
						path.Base(bad.pkg), name))
				}
			})
		}
	}
	return out
}

// checkVersion wants a variable called version in every command: the Makefile
// sets main.version, and the linker ignores a name that does not exist.
func checkVersion(r *Repo) []Finding {
	first := make(map[string]*File)
	has := make(map[string]bool)
	for _, f := range r.Files {
		if f.Test || f.AST.Name.Name != "main" || top(f.Dir) != "cmd" {
			continue
		}
		if first[f.Dir] == nil {
			first[f.Dir] = f
		}
		for _, d := range f.AST.Decls {
			vars, ok := d.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			for _, spec := range vars.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					has[f.Dir] = has[f.Dir] || name.Name == "version"
				}
			}
		}
	}
	var out []Finding
	for dir, f := range sorted(first) {
		if !has[dir] {
			out = append(out, r.finding("version", f, f.AST.Name, "%s has no `var version`, which `make build` sets", dir))
		}
	}
	return out
}

// checkSleep looks at tests and at what they lean on. Within testing/synctest
// time is virtual and a sleep is exact.
func checkSleep(r *Repo) []Finding {
	var out []Finding
	for _, f := range r.Files {
		if !f.Test && top(f.Dir) != "e2e" && !within(f.Dir, "internal/testutil") {
			continue
		}
		if importName(f.AST, "testing/synctest") != "" {
			continue
		}
		callsOf(f.AST, "time", func(call *ast.CallExpr, name string) {
			if name == "Sleep" {
				out = append(out, r.finding("sleep", f, call, "sleeps: wait for the thing itself, or use testing/synctest"))
			}
		})
		clock := importName(f.AST, "time")
		timeout := make(map[ast.Stmt]bool) // in a select it is a timeout, not a sleep
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CommClause:
				timeout[n.Comm] = true
			case *ast.ExprStmt:
				recv, ok := n.X.(*ast.UnaryExpr)
				if ok && !timeout[n] && recv.Op == token.ARROW && isCall(recv.X, clock, "After") {
					out = append(out, r.finding("sleep", f, n, "waits by <-time.After: that is a sleep"))
				}
			}
			return true
		})
	}
	return out
}

func isCall(e ast.Expr, pkg, name string) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || sel.Sel.Name != name {
		return false
	}
	id, ok := sel.X.(*ast.Ident)
	return ok && id.Name == pkg
}

// checkRaftConfig refuses the settings and calls of raft that are traps (docs/testing.md).
func checkRaftConfig(r *Repo) []Finding {
	var out []Finding
	for _, f := range r.Files {
		ast.Inspect(f.AST, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok && id.Name == "RestoreCommittedLogs" {
				out = append(out, r.finding("raftconfig", f, id,
					"RestoreCommittedLogs starts with an empty server list and can hang in NewRaft"))
			}
			if call, ok := n.(*ast.CallExpr); ok && within(f.Dir, "raftstore") {
				if sel, ok := call.Fun.(*ast.SelectorExpr); ok && isRaft(sel.X) {
					switch sel.Sel.Name {
					case "AppliedIndex":
						out = append(out, r.finding("raftconfig", f, call,
							"raft's AppliedIndex is what it sent to the machine: ask the machine"))
					case "LastContact":
						out = append(out, r.finding("raftconfig", f, call,
							"raft's LastContact is renewed by refusals too: take the indices that the transport saw"))
					}
				}
			}
			return true
		})
	}
	return out
}

// isRaft recognises x.raft and raft, what an instance calls its *raft.Raft.
func isRaft(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr:
		return e.Sel.Name == "raft"
	case *ast.Ident:
		return e.Name == "raft"
	}
	return false
}

// checkBackend keeps the pure Go backend out of its default mode, which
// deadlocks when as many large products are ready as there are workers.
func checkBackend(r *Repo) []Finding {
	var out []Finding
	bad := func(f *File, lit *ast.BasicLit) {
		out = append(out,
			r.finding("backend", f, lit, "opens the backend %s: its default mode deadlocks, open go:ops_sequential", lit.Value))
	}
	for _, f := range r.Files {
		if top(f.Dir) != "trainer" && top(f.Dir) != "cmd" {
			continue
		}
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if s, ok := stringLit(n); ok && strings.HasPrefix(s, "go:") && !strings.Contains(s, "ops_sequential") &&
					!strings.Contains(s, " ") {
					bad(f, n)
				}
			case *ast.CallExpr:
				sel, ok := n.Fun.(*ast.SelectorExpr)
				if !ok || sel.Sel.Name != "NewWithConfig" || len(n.Args) != 1 {
					return true
				}
				if lit, ok := n.Args[0].(*ast.BasicLit); ok {
					if s, ok := stringLit(lit); ok && s == "go" {
						bad(f, lit)
					}
				}
			}
			return true
		})
	}
	return out
}

func stringLit(lit *ast.BasicLit) (string, bool) {
	if lit.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(lit.Value)
	return s, err == nil
}
