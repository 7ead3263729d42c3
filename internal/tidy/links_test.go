package tidy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLinksLeadSomewhere(t *testing.T) {
	t.Run("dead ones are found", func(t *testing.T) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "a.md"),
			"[b](b.md) [itself](#here) [web](https://example.org/x) [gone](gone.md#part) [up](../no-such-file)")
		write(t, filepath.Join(dir, "b.md"), "[a](a.md#x)")
		write(t, filepath.Join(dir, "a.go"), "// The bytes: docs/"+"formats/none.md.\npackage a\n")
		dead, err := DeadLinks(dir)
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(dead, "\n")
		if len(dead) != 3 || !strings.Contains(got, "gone.md") || !strings.Contains(got, "no-such-file") ||
			!strings.Contains(got, "none.md") {
			t.Errorf("found %q, want gone.md, ../no-such-file and the page none.md", dead)
		}
	})
	t.Run("in this repository", func(t *testing.T) {
		dead, err := DeadLinks(root)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dead {
			t.Error(d)
		}
	})
}

// The tables that name a test for each hazard are worth what the names are.
func TestTablesNameTestsThatExist(t *testing.T) {
	repo, err := Load(root)
	if err != nil {
		t.Fatal(err)
	}
	ops, err := filepath.Glob(filepath.Join(root, "docs/ops/*.md"))
	if err != nil || len(ops) == 0 {
		t.Fatalf("docs/ops: %v, %v", ops, err)
	}
	files := []string{"docs/testing.md", "raftstore/DESIGN.md"}
	for _, page := range ops {
		files = append(files, "docs/ops/"+filepath.Base(page))
	}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, missing := range repo.MissingTests(file, string(text)) {
			t.Error(missing)
		}
	}
	if got := repo.MissingTests("x.md", "| a | TestTablesNameTestsThatExist, TestThatWasRenamed |"); len(got) != 1 {
		t.Errorf("got %q, want one complaint", got)
	}
}
