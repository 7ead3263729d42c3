package checkpoint

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

// TestRestoredRowsAreChecked against the manifest, not against the shards: between the restore and the report rows may
// expire or be deleted.
func TestRestoredRowsAreChecked(t *testing.T) {
	v := &restoredJSON{Tables: []restoredTableJSON{{Table: "emb", Written: 10, Restored: 8, Filtered: 2}},
		Shards: []restoredShardJSON{{Rows: 3}, {Rows: 4}}}
	if err := v.check(); err != nil {
		t.Errorf("one row has expired since the restore: %v", err)
	}
	v.Tables[0].Filtered = 1
	testutil.WantCodeOf(t, "a row is missing", v.check(), rowraft.CodeCorrupt)
}
