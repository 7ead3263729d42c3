package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/trainer/data"
)

// Paths in a job file are relative to the folder of the file, whatever the working directory is.
func TestPathsAreRelativeToTheJobFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "job.yaml")
	for _, tc := range []struct {
		text string
		of   func(*Config) []string
		want []string
	}{
		{"data: {file: a.csv, schema: ../b.yaml}\ntensorboard: {dir: runs}\n",
			func(c *Config) []string { return []string{c.Data.File[0], c.Data.Schema, c.TensorBoard.Dir} },
			[]string{filepath.Join(dir, "a.csv"), filepath.Join(filepath.Dir(dir), "b.yaml"), filepath.Join(dir, "runs")}},
		{"data: {images: i, labels: l, held_images: /x/i, held_labels: hl}\n",
			func(c *Config) []string {
				return []string{c.Data.Images, c.Data.Labels, c.Data.HeldImages, c.Data.HeldLabels}
			},
			[]string{filepath.Join(dir, "i"), filepath.Join(dir, "l"), "/x/i", filepath.Join(dir, "hl")}},
		{"data: {follow: \"-\"}\n", func(c *Config) []string { return []string{c.Data.Follow, c.Data.File.String()} },
			[]string{"-", ""}},
		{"data: {follow: log}\n", func(c *Config) []string { return []string{c.Data.Follow} },
			[]string{filepath.Join(dir, "log")}},
	} {
		if err := os.WriteFile(path, []byte(tc.text), 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := LoadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(tc.of(&c), " "); got != strings.Join(tc.want, " ") {
			t.Errorf("%s: paths %s, want %s", tc.text, got, strings.Join(tc.want, " "))
		}
	}
}

// A run on labels that are all 0 is refused before its first batch, with the values that were seen.
func TestLabelsThatAreAllZeroAreRefused(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	l, cfg := newLocal(t), tinyConfig(2, 0)
	cfg.Generator = nil
	cfg.Data.File = data.Paths{write("clicks.csv", "clicked,ad,user\nno,1,a\nyes,2,b\nno,3,a\nyes,4,b\n")}
	cfg.Data.Schema = write("clicks.yaml",
		"label: {column: clicked, positive: [\"1\"]}\ncategorical: [{column: ad}, {column: user}]\n")
	j, err := NewJob(t.Context(), cfg, l, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Run(t.Context())
	if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || r.Steps != 0 ||
		!strings.Contains(err.Error(), `positive is ["1"]`) || !strings.Contains(err.Error(), `clicked has the values ["no" "yes"]`) {
		t.Errorf("%d steps, %v; want a refusal with the values no and yes", r.Steps, err)
	}
}
