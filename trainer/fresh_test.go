package trainer

import (
	"strings"
	"testing"
)

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
