package tidy

import (
	"fmt"
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
)

// oldWords are words that the house style replaces: a sentence with one of them hides its subject.
var oldWords = regexp.MustCompile(`(?i)\b(?:nobody|somebody|everybody|whoever|anew|beside)\b`)

// unswept are the directories that OldWords skips. The list only gets shorter.
var unswept = []string{
	"internal/tidy", // this file names the words
}

// OldWords lists lines of code and documents that use a word of oldWords, but for what is unswept.
func OldWords(root string) ([]string, error) {
	var found []string
	err := eachFile(root, []string{".go", ".md", ".proto", ".sh", "Makefile"}, func(rel string, text []byte) error {
		if slices.Contains(unswept, path.Dir(rel)) {
			return nil
		}
		for i, line := range strings.Split(string(text), "\n") {
			if w := oldWords.FindString(line); w != "" {
				found = append(found, fmt.Sprintf("%s:%d: %q: name the subject (the client, the leader, another job); "+
					`"concurrently with", "next to"; "again"`, rel, i+1, w))
			}
		}
		return nil
	})
	return found, err
}

// nodeWord is what code calls a server; texts for people do not (docs/words.md).
var nodeWord = regexp.MustCompile(`(?i)\bnodes?\b`)

// checkWords refuses nodeWord in the string literals of commands and packages. A literal without a space is a name, for
// example of a file, and the tag of a field names a key of a file.
func checkWords(r *Repo) []Finding {
	var out []Finding
	for _, f := range r.Files {
		if f.Test || f.Generated || slices.Contains(unswept, f.Dir) {
			continue
		}
		tags := make(map[*ast.BasicLit]bool)
		ast.Inspect(f.AST, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Field:
				tags[n.Tag] = true
			case *ast.BasicLit:
				if s, ok := stringLit(n); ok && !tags[n] && strings.Contains(s, " ") && nodeWord.MatchString(s) {
					out = append(out, r.finding("words", f, n, "a text for people says %q: say server", nodeWord.FindString(s)))
				}
			}
			return true
		})
	}
	return out
}
