package tidy

import (
	"fmt"
	"go/ast"
	"go/scanner"
	"go/token"
	"strings"
	"unicode/utf8"
)

// What one person can read and remember. The limits bind hand-written code; those of packages and types leave out
// tests.
const (
	warnLines  = 600  // lines of a file, a hint
	maxLines   = 800  // lines of a file
	maxPackage = 4500 // lines of a package
	maxMethods = 42   // methods of a type
	maxWidth   = 120  // characters of a line, a tab counts as one
)

func checkSize(r *Repo) []Finding {
	var out []Finding
	lines, first := make(map[string]int), make(map[string]*File)
	methods := make(map[string]int)
	for _, f := range r.Files {
		if f.Generated {
			continue
		}
		if f.Lines > maxLines {
			out = append(out, r.finding("size", f, f.AST.Name, "%d lines, at most %d: split it by job", f.Lines, maxLines))
		}
		for _, line := range f.Wide {
			out = append(out, Finding{Path: f.Path, Line: line, Rule: "size",
				Msg: fmt.Sprintf("more than %d characters", maxWidth)})
		}
		if f.Test {
			continue
		}
		lines[f.Dir] += f.Lines
		if first[f.Dir] == nil {
			first[f.Dir] = f
		}
		for _, d := range f.AST.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			name := f.Dir + " " + receiver(fn)
			if methods[name]++; methods[name] == maxMethods+1 {
				out = append(out, r.finding("size", f, fn, "type %s has more than %d methods: give a part of its state a type",
					receiver(fn), maxMethods))
			}
		}
	}
	for dir, n := range sorted(lines) {
		if n > maxPackage {
			out = append(out, r.finding("size", first[dir], first[dir].AST.Name,
				"package of %d lines, at most %d: split it by job", n, maxPackage))
		}
	}
	return out
}

// receiver returns the name of the type that has the method.
func receiver(fn *ast.FuncDecl) string {
	t := fn.Recv.List[0].Type
	if p, ok := t.(*ast.StarExpr); ok {
		t = p.X
	}
	switch g := t.(type) {
	case *ast.IndexExpr:
		t = g.X
	case *ast.IndexListExpr:
		t = g.X
	}
	return t.(*ast.Ident).Name
}

// wide returns the lines of more than maxWidth characters. A raw string, and what has no place for a break, may be
// wider.
func wide(src []byte) (out []int) {
	lines := strings.Split(string(src), "\n")
	for i, l := range lines {
		if utf8.RuneCountInString(l) > maxWidth {
			out = append(out, i+1)
		}
	}
	if len(out) == 0 {
		return nil
	}
	free := make(map[int]bool) // lines that may be wide
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(file, src, nil, scanner.ScanComments)
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			break
		}
		at := file.Position(pos)
		raw := tok == token.STRING && lit[0] == '`'
		longWord := utf8.RuneCountInString(longest(lit)) > maxWidth/2
		for n := range strings.Count(lit, "\n") + 1 {
			free[at.Line+n] = free[at.Line+n] || raw || longWord
		}
	}
	kept := out[:0]
	for _, n := range out {
		if !free[n] {
			kept = append(kept, n)
		}
	}
	return kept
}

// longest returns the longest word of s.
func longest(s string) (word string) {
	for _, w := range strings.Fields(s) {
		if len(w) > len(word) {
			word = w
		}
	}
	return word
}

// Long lists the files that should be split before they must be.
func (r *Repo) Long() []string {
	var out []string
	for _, f := range r.Files {
		if !f.Generated && f.Lines > warnLines && f.Lines <= maxLines {
			out = append(out, fmt.Sprintf("%s: %d lines, aim for %d", f.Path, f.Lines, warnLines))
		}
	}
	return out
}
