package member

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/client"
)

// TestAutoBeginsOnFreshTablesOnly: a restart script may start a job with resume auto, and must not train
// half-trained rows from step 1.
func TestAutoBeginsOnFreshTablesOnly(t *testing.T) {
	for _, tc := range []struct {
		name   string
		parted bool
		now    client.Restored
		held   string // the table that holds rows
		fails  bool
	}{
		{name: "the first start"},
		{name: "rows of another job", held: "other.dense"},
		{name: "rows, and no trainer", held: "ctr.dense", fails: true},
		{name: "another job trains", held: "ctr.dense",
			now: client.Restored{Training: []client.Trainer{{Job: "other"}}}, fails: true},
		{name: "the job's other trainers have begun", held: "ctr.dense",
			now: client.Restored{Training: []client.Trainer{{Job: "ctr", Rank: 1}}}},
		{name: "the scheduler knows how far the data was read", parted: true, held: "ctr.dense"},
	} {
		q := &Resume{Job: "ctr", Tables: []string{"ctr.embeddings", "ctr.dense"}, Continues: tc.parted}
		err := q.canStart(&tc.now, func(table string) (bool, error) { return table == tc.held, nil })
		if tc.fails != (err != nil) || tc.fails && (rowraft.CodeOf(err) != rowraft.CodePrecondition ||
			!strings.Contains(err.Error(), "--table ctr.embeddings,ctr.dense --replace")) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// A checkpoint without a job does not decide how the job's data is divided.
func TestACheckpointOfAnotherJob(t *testing.T) {
	dir := t.TempDir()
	manifest, err := os.ReadFile("../../checkpoint/testdata/manifest.txt") // of job ctr, which was trained in shares
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "one"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one", checkpoint.ManifestFile), manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	for job, want := range map[string]bool{"ctr": true, "another": false, "ct": false} {
		if p, trained, err := ReadSplits(t.Context(), dir+"/one", job); p != nil || trained != want || err != nil {
			t.Errorf("job %s: %v, %v, %v", job, p, trained, err)
		}
	}
}
