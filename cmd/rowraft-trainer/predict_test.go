package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPredictWithInput: standard input has the predictions of the file, and each line of the input stands in front of
// its prediction, behind the header.
func TestPredictWithInput(t *testing.T) {
	dir, data := trainedExport(t)
	input, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	predict := func(args ...string) []string {
		t.Helper()
		out := filepath.Join(t.TempDir(), "scores")
		if _, code, err := command(t, append([]string{"predict", "--from", dir, "--out", out}, args...)...); code != 0 {
			t.Fatal(err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	}
	scores := predict("--data", data, "--workers", "3")
	want := []string{strings.Split(string(input), "\n")[0] + ",prediction"}
	for i, line := range strings.Split(strings.TrimSpace(string(input)), "\n")[1:] {
		want = append(want, line+","+scores[i])
	}
	same := func(got []string) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%d lines, want %d", len(got), len(want))
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("line %d is %q, want %q", i, got[i], want[i])
			}
		}
	}
	same(predict("--data", data, "--with-input"))
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	if os.Stdin, err = os.Open(data); err != nil {
		t.Fatal(err)
	}
	defer os.Stdin.Close()
	same(predict("--data", "-", "--with-input", "--workers", "2"))
}
