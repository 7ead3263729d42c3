package main

import (
	"testing"

	"github.com/spf13/cobra"

	"github.com/rowraft/rowraft/cmd/rowraft/internal/remote"
	"github.com/rowraft/rowraft/internal/tidy"
)

// Each call of rowraft in README.md, docs and docs/ops is one that it takes.
func TestManualShowsCommandsThatExist(t *testing.T) {
	n, wrong, err := tidy.CheckManual("../..", func() *cobra.Command { return newRoot(&remote.Flags{}) })
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
	if n < 40 {
		t.Errorf("looked at %d calls only: are the pages there?", n)
	}
}
