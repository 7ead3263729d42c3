package entry

import (
	"testing"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
)

// An entry that arrives damaged is not stored, so it is not acknowledged.
func TestDamagedEntryIsNotStored(t *testing.T) {
	l := &raft.Log{Index: 5, Term: 2, Type: raft.LogCommand, Data: []byte("data"), Extensions: Seal([]byte("data"))}
	if err := Complete(l); err != nil { // as the leader does
		t.Fatal(err)
	}
	for name, change := range map[string]func(*raft.Log){
		"nothing": func(*raft.Log) {},
		"data":    func(l *raft.Log) { l.Data = []byte("dat\x00") },
		"index":   func(l *raft.Log) { l.Index = 6 },
		"seal":    func(l *raft.Log) { l.Extensions = l.Extensions[:5] },
	} {
		got := *l
		change(&got)
		if err := Complete(&got); (rowraft.CodeOf(err) == rowraft.CodeCorrupt) != (name != "nothing") {
			t.Errorf("%s changed: %v", name, err)
		}
	}
}
