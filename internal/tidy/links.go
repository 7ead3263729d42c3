package tidy

import (
	"errors"
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	testName     = regexp.MustCompile(`\b(?:Test|Fuzz)[A-Z][A-Za-z0-9]+…?`)
	formatPage   = regexp.MustCompile(`docs/formats/[a-z-]+\.md`)
)

// DeadLinks lists relative links in Markdown files, and pages of docs/formats
// named in Go files, that lead nowhere.
func DeadLinks(root string) ([]string, error) {
	var dead []string
	check := func(from, target string) {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			dead = append(dead, fmt.Sprintf("%s refers to %s", from, target))
		}
	}
	err := eachFile(root, []string{".md", ".go"}, func(rel string, b []byte) error {
		p := filepath.Join(root, rel)
		if filepath.Ext(p) == ".go" {
			for _, page := range formatPage.FindAllString(string(b), -1) {
				check(p, filepath.Join(root, page))
			}
			return nil
		}
		for _, m := range markdownLink.FindAllStringSubmatch(string(b), -1) {
			target, _, _ := strings.Cut(m[1], "#")
			if target != "" && !strings.Contains(target, ":") {
				check(p, filepath.Join(filepath.Dir(p), target))
			}
		}
		return nil
	})
	return dead, err
}

// MissingTests lists tests that the Markdown text of a file names and that r lacks.
func (r *Repo) MissingTests(file, text string) []string {
	have := map[string]bool{}
	for _, f := range r.Files {
		if !f.Test {
			continue
		}
		for _, d := range f.AST.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok {
				have[fn.Name.Name] = true
			}
		}
	}
	var missing []string
	for _, name := range testName.FindAllString(text, -1) {
		if begin, more := strings.CutSuffix(name, "…"); more { // several
			have[name] = false
			for full := range have {
				have[name] = have[name] || strings.HasPrefix(full, begin) && full != name
			}
		}
		if !have[name] && name != "TestName" && name != "FuzzName" && name != "TestMain" {
			missing = append(missing, fmt.Sprintf("%s names %s, which does not exist", file, name))
		}
	}
	return missing
}
