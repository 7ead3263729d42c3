package main

import (
	"testing"

	"github.com/rowraft/rowraft/internal/tidy"
)

// Each call of rowraft-bench in README.md, docs and docs/ops is one that it takes.
func TestManualShowsCommandsThatExist(t *testing.T) {
	n, wrong, err := tidy.CheckManual("../..", newRoot)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
	if n < 1 {
		t.Errorf("looked at %d calls only: are the pages there?", n)
	}
}
