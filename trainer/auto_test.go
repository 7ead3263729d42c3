package trainer

import (
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
)

// TestAutoBeginsOnFreshTablesOnly: a restart script may begin a job with resume auto, and must not
// train half-trained rows from step 1.
func TestAutoBeginsOnFreshTablesOnly(t *testing.T) {
	rows := map[string]uint64{"ctr.dense": 3, "other.dense": 9}
	for _, tc := range []struct {
		name   string
		parted bool
		now    client.Restored
		fails  bool
	}{
		{name: "the first start"},
		{name: "rows of another job", now: client.Restored{Rows: map[string]uint64{"other.dense": 9}}},
		{name: "rows, and nobody trains", now: client.Restored{Rows: rows}, fails: true},
		{name: "another job trains", now: client.Restored{Rows: rows, Training: []client.Trainer{{Job: "other"}}}, fails: true},
		{name: "the job's other trainers have begun", now: client.Restored{Rows: rows, Training: []client.Trainer{{Job: "ctr", Rank: 1}}}},
		{name: "the scheduler knows how far the data was read", parted: true, now: client.Restored{Rows: rows}},
	} {
		c := &Config{Job: "ctr", Mode: Async, parted: tc.parted}
		err := c.mayBegin(&tc.now)
		if tc.fails != (err != nil) || tc.fails && (rowraft.CodeOf(err) != rowraft.CodePrecondition || !strings.Contains(err.Error(), "--table 'ctr.*' --replace")) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
