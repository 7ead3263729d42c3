package tidy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCodeBlocksOfDocumentsCompile(t *testing.T) {
	repo, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := CodeBlocks(root, repo)
	if err != nil {
		t.Fatal(err)
	}
	comments := 0
	for _, b := range blocks {
		if b.Self != "" {
			comments++
		}
	}
	if comments < 2 || len(blocks) < comments+1 {
		t.Errorf("found %d blocks in package comments and %d in pages, want at least 2 and 1: are they still recognized?",
			comments, len(blocks)-comments)
	}
	wrong, err := CheckCodeBlocks(root, repo, blocks)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
}

// A program, statements of a page and statements of a package comment: right ones pass, wrong ones are found.
func TestWrongCodeBlocksAreFound(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "errs"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "go.mod"), "module "+Module+"\n\ngo 1.26\n")
	const doc = "// Package errs makes errors.\n//\n//\terr := errs.New(text)\n//\terr = errs.Old(text)\n//\tn := " +
		"errs.New(1)\n//\n// A drawing:\n//\n//\ta ──► b\npackage errs\n\n"
	write(t, filepath.Join(dir, "errs/a.go"), doc+"// New makes one.\nfunc New(text string) error { return nil }\n")
	write(t, filepath.Join(dir, "a.md"),
		"Text\n```go\npackage main\n\nimport \"os\"\n\nfunc main() { os.Exit(\"1\") }\n```\n"+
			"```go\nerr := errs.New(\"a\")\nf, err := os.Open(name, 2)\n```\n```\nnot go\n```\n")
	repo, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := CodeBlocks(dir, repo)
	if err != nil {
		t.Fatal(err)
	}
	wrong, err := CheckCodeBlocks(dir, repo, blocks)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Join(wrong, "\n")
	for _, want := range []string{"a.md:3: cannot use \"1\"", "a.md:10: too many arguments",
		"errs/a.go: undefined: errs.Old", "errs/a.go: cannot use 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("the findings lack %q", want)
		}
	}
	if len(wrong) != 4 {
		t.Errorf("found %d, want 4:\n%s", len(wrong), got)
	}
}
