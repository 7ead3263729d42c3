package trainer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft/trainer/data"
)

// TestDataIsReadOnce: a job that starts over checks its data before it deletes tables, and the registration that
// follows does not read it again. A later one does.
func TestDataIsReadOnce(t *testing.T) {
	c, dir := DefaultConfig(), t.TempDir()
	c.Data.File, c.Data.Schema = data.Paths{filepath.Join(dir, "clicks.csv")}, filepath.Join(dir, "clicks.yaml")
	for path, text := range map[string]string{c.Data.File[0]: "clicked,ad\n0,1\n1,2\n",
		c.Data.Schema: "label: {column: clicked}\ncategorical: [{column: ad}]\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.CheckData(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(c.Data.File[0]); err != nil {
		t.Fatal(err)
	}
	if set, err := c.takeChecked(); err != nil || set == nil {
		t.Errorf("the registration reads the data again: %v", err)
	}
	if _, err := c.takeChecked(); err == nil {
		t.Error("a later registration does not read the data")
	}
}

// TestTablesOfAJob: a job that starts over deletes all its tables and none of another job.
func TestTablesOfAJob(t *testing.T) {
	c := DefaultConfig()
	c.Job, c.Mode, c.Trainers, c.Audit = "a", Async, 2, true
	count, _ := progressSchema(&c)
	for _, s := range append(c.schemas(), count) {
		if !c.hasTable(s.Name) {
			t.Errorf("%s is no table of job a", s.Name)
		}
	}
	for name, want := range map[string]bool{"a.dense.top.w": true, "ab.dense": false, "a.b.dense": false, "a": false,
		"a.other": false} {
		if c.hasTable(name) != want {
			t.Errorf("%s is a table of job a: %v, want %v", name, !want, want)
		}
	}
	for _, name := range []string{"a.dense", "a.dense.b"} {
		c.Job = name
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "x.dense") {
			t.Errorf("job %s: %v, want an error: job a would delete its tables", name, err)
		}
	}
}
