package offline

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/entry"
	"github.com/rowraft/rowraft/raftstore/raftlog"
)

// logOf returns a group whose log has the entries first to last of term 1.
func logOf(t *testing.T, first, last uint64) *Group {
	t.Helper()
	l, err := raftlog.Open(vfs.OS, raftlog.Bolt, t.TempDir(), raftlog.Owner{Cluster: "c1", Node: "n1", Group: "shard-0",
		Replica: "r1"}, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	g := &Group{log: l, First: rowraft.Index(first), Last: rowraft.Index(last)}
	for i := first; i <= last; i++ {
		g.put(t, raft.Log{Index: i, Term: 1, Type: raft.LogCommand, Data: fmt.Append(nil, i)})
	}
	return g
}

// put stores an entry with a good checksum, over the one that is there.
func (g *Group) put(t *testing.T, l raft.Log) {
	t.Helper()
	l.Extensions = entry.Seal(l.Data)
	if err := entry.Complete(&l); err != nil {
		t.Fatal(err)
	}
	if err := g.log.StoreLog(&l); err != nil {
		t.Fatal(err)
	}
}

// Good logs agree up to their ends. A changed entry with a good checksum is found at any place.
func TestLogsMatch(t *testing.T) {
	const first, last = 4, 12 // of both logs
	other := []byte("other")
	for _, tc := range []struct {
		name  string
		index uint64 // of the changed entry; 0: none
		term  uint64
		data  []byte // nil: as it was
		snap  rowraft.Index
		want  string // part of the error; "": they agree to agree
		agree rowraft.Index
	}{
		{name: "good logs", agree: last},
		{name: "other data in the middle", index: 6, term: 1, data: other, want: "after it"},
		{name: "another term in the middle", index: 6, term: 8, want: "after it"},
		{name: "other data at the end, one term", index: last, term: 1, data: other, want: "one term has one entry"},
		{name: "another term at the end, before a snapshot's", index: last, term: 8, snap: last,
			want: "a snapshot covers it"},
		{name: "another term at the end, uncommitted", index: last, term: 8, data: other, agree: last - 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a, b := logOf(t, 1, last+3), logOf(t, first, last)
			if tc.snap > 0 {
				b.Snapshots = []Snapshot{{Index: tc.snap}}
			}
			if tc.index > 0 {
				data := tc.data
				if data == nil {
					data = fmt.Append(nil, tc.index)
				}
				b.put(t, raft.Log{Index: tc.index, Term: tc.term, Type: raft.LogCommand, Data: data})
			}
			agree, err := Match(a, b)
			switch {
			case tc.want == "" && (err != nil || agree != tc.agree):
				t.Errorf("agree to %d, %v, want %d", agree, err, tc.agree)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}
