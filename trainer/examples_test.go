package trainer

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/data"
)

// Every job and schema of examples parses, and examples/README.md names it, and the source of each data file that a
// job reads.
func TestExamples(t *testing.T) {
	readme, err := os.ReadFile("../examples/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, sources, _ := strings.Cut(string(readme), "\n## Data\n")
	sources, _, _ = strings.Cut(sources, "\n## ")
	jobs, schemas := 0, 0
	err = filepath.WalkDir("../examples", func(path string, e fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" || strings.HasPrefix(path, "../examples/data/") {
			return err
		}
		if !strings.Contains(string(readme), "`"+e.Name()+"`") && filepath.Dir(path) == "../examples" {
			t.Errorf("examples/README.md does not name %s", path)
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if hasKey(text, "format") {
			schemas++
			_, err := data.LoadSchema(path)
			return err
		}
		jobs++
		c, err := LoadConfig(path)
		if err != nil {
			return err
		}
		c.Endpoints = []string{"127.0.0.1:1"}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		files := 0
		for _, f := range []string{c.Data.File.String(), c.Data.Images, c.Data.Labels, c.Data.HeldImages, c.Data.HeldLabels,
			c.Validation.String(), c.Data.Follow} {
			if f == "" {
				continue
			}
			files++
			if name := strings.TrimPrefix(f, "../examples/"); !strings.Contains(sources, "`"+name+"`") {
				t.Errorf("%s reads %s: examples/README.md has no source of `%s`", path, f, name)
			}
		}
		if (files == 0) != (c.Generator != nil) {
			t.Errorf("%s reads %d files, and a generator: %v", path, files, c.Generator != nil)
		}
		if _, err := os.Stat(c.Data.Schema); c.Data.Schema != "" && err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
	if err != nil || jobs < 5 || schemas < 2 {
		t.Errorf("%d jobs, %d schemas, error %v: want 5 jobs and 2 schemas", jobs, schemas, err)
	}
}
