package trainer

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
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
		c := &Config{Job: "ctr", Mode: Async, splitData: tc.parted}
		err := c.canStart(&tc.now, func(table string) (bool, error) { return table == tc.held, nil })
		if tc.fails != (err != nil) || tc.fails && (rowraft.CodeOf(err) != rowraft.CodePrecondition ||
			!strings.Contains(err.Error(), "--table 'ctr.*' --replace")) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
