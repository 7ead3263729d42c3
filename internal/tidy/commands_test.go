package tidy

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestCommandsOfAPage(t *testing.T) {
	const page = "Ask `rowraft server list` or `other x`.\n" +
		"```\nA=1 rowraft a --b 'c d' \\\n  e   # a remark\nls | rowraft f; sudo rowraft g &\n```\n" +
		"```text\nrowraft no\n```\n```console\n$ rowraft h\nrowraft prints this\nn1# /usr/bin/rowraft i && rowraft j\n```\n"
	got, err := Commands("p.md", page, "rowraft")
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, c := range got {
		whole := ""
		if c.Whole {
			whole = " whole"
		}
		lines = append(lines, c.Where+whole+": "+strings.Join(c.Args, "|"))
	}
	want := []string{
		"p.md:1: server|list",
		"p.md:4 whole: a|--b|c d|e",
		"p.md:5 whole: f", "p.md:5 whole: g",
		"p.md:11 whole: h",
		"p.md:13 whole: i", "p.md:13 whole: j",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	for _, bad := range []string{"```\nrowraft a \\\n```\n", "```\nrowraft 'a\n```\n"} {
		if got, err := Commands("p.md", bad, "rowraft"); err == nil {
			t.Errorf("%q: got %v, want an error", bad, got)
		}
	}
}

func TestWrongCommandsOfAPageAreFound(t *testing.T) {
	newRoot := func() *cobra.Command {
		root := &cobra.Command{Use: "prog"}
		group := &cobra.Command{Use: "node"}
		drain := &cobra.Command{Use: "drain NODE", Args: cobra.ExactArgs(1), RunE: func(*cobra.Command, []string) error {
			return nil
		}}
		drain.Flags().Duration("for", 0, "")
		root.PersistentFlags().String("output", "", "")
		group.AddCommand(drain)
		root.AddCommand(group)
		return root
	}
	good := "`prog node drain --for` `prog node …` `prog node drain n1 --output`\n```\nprog node drain n1 --for 3s " +
		"--output json\nprog --help\n```\n"
	bad := "`prog node undrain`\n`prog node drain --never`\n`prog nothing`\n```\nprog node drain\nprog node drain n1 " +
		"--for long\nprog node drain n1 --never\nprog node n1\n```\n"
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "docs/ops"), 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "README.md"), good)
	write(t, filepath.Join(dir, "docs/ops/a.md"), bad)
	n, wrong, err := CheckManual(dir, newRoot)
	if err != nil {
		t.Fatal(err)
	}
	if n != 5+7 || len(wrong) != 7 {
		t.Errorf("looked at %d calls and found %d wrong, want 12 and 7:\n%s", n, len(wrong), strings.Join(wrong, "\n"))
	}
}

func TestManualShowsTargetsThatExist(t *testing.T) {
	n, wrong, err := CheckMake(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range wrong {
		t.Error(w)
	}
	if n < 20 {
		t.Errorf("looked at %d calls of make only: are the pages there?", n)
	}
}

func TestWrongTargetsAreFound(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "Makefile"), "X := 1\nbuild:\n\techo\nrow-test: build ## all\n")
	write(t, filepath.Join(dir, "README.md"), "`make build X=1` `make -s row-test`\n```\nmake X\nmake demo\n```\n")
	n, wrong, err := CheckMake(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n != 4 || len(wrong) != 2 {
		t.Errorf("looked at %d calls and found %d wrong, want 4 and 2:\n%s", n, len(wrong), strings.Join(wrong, "\n"))
	}
}
