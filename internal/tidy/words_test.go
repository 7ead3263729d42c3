package tidy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNoOldWords(t *testing.T) {
	found, err := OldWords(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

// A swept file with an old word is found, in whatever case; part of another word is none.
func TestOldWordsAreFound(t *testing.T) {
	dir := t.TempDir()
	text := "package a\n\n// Nobody reads it.\n// A besides and a nobodyElse.\n"
	if err := os.Mkdir(filepath.Join(dir, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a", "a.go"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := OldWords(dir)
	if err != nil || len(found) != 1 || !strings.HasPrefix(found[0], `a/a.go:3: "Nobody"`) {
		t.Errorf("OldWords of one bad line: %q, %v", found, err)
	}
}
