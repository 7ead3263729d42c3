package cluster

import (
	"os"
	"path/filepath"
	"testing"
)

// A replica that is refused though no fault rolled its disk back is a violation, once.
func TestWronglyRefusedReplicasAreFound(t *testing.T) {
	log := filepath.Join(t.TempDir(), "n1.log")
	const lines = `{"level":"ERROR","msg":"the group has stopped forever","group":"shard-0","err":"group shard-0, replica r1: rolled back disk: its log ends at entry 3"}
{"level":"ERROR","msg":"the group has stopped forever","group":"shard-1","err":"group shard-1, replica r2: rolled back disk: its log ends at entry 3"}
{"level":"ERROR","msg":"the group has stopped forever","group":"shard-1","err":"group shard-1, replica r2: rolled back disk: its log ends at entry 3"}
{"level":"ERROR","msg":"the group has stopped forever","group":"meta","err":"group meta, replica r3: two processes run as server n1, on copies of one data directory"}
{"level":"ERROR","msg":"the group has stopped forever","group":"shard-2","err":"group shard-2, replica r4: truncate the log in /d: the leader has other entries from 3 on: the disk of another replica was rolled back; keep"}
`
	if err := os.WriteFile(log, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		rolledBack []string
		want       int
	}{{[]string{"r1", "r2"}, 2}, {[]string{"r1"}, 3}, {nil, 4}} {
		got, err := WronglyRefused(log, tc.rolledBack)
		if err != nil || len(got) != tc.want {
			t.Errorf("with %v rolled back: %q, %v, want %d", tc.rolledBack, got, err, tc.want)
		}
	}
}
