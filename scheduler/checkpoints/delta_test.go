package checkpoints

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

func TestPickBase(t *testing.T) {
	cluster := &clustermap.Map{Cluster: "us", Epoch: 3}
	of := func(name string, c rowraft.ClusterID, epoch rowraft.TableEpoch, change ...func(*depot.Found)) depot.Found {
		f := depot.Found{Name: name, Manifest: &checkpoint.Manifest{ID: "id-" + name, Cluster: c, Epoch: epoch}}
		for _, do := range change {
			do(&f)
		}
		return f
	}
	incomplete := depot.Found{Name: "half"}
	broken := func(f *depot.Found) { f.Err = rowraft.Errorf(rowraft.CodeNotFound, "its parent is missing") }
	deleting := func(f *depot.Found) { f.Deleting = true }
	long := func(f *depot.Found) { f.Deltas = checkpoint.MaxDeltas }
	for _, tc := range []struct {
		name  string
		found []depot.Found
		base  string
		want  string
		code  rowraft.Code
		says  string
	}{
		{name: "nothing there", code: rowraft.CodeNotFound, says: "no checkpoint of this cluster"},
		{name: "the newest", found: []depot.Found{of("a", "us", 3), of("b", "us", 3)}, want: "b"},
		{name: "others' and halves are passed by", found: []depot.Found{of("a", "us", 3), of("b", "them", 3),
			of("c", "us", 3, broken), of("d", "us", 3, deleting), incomplete}, want: "a"},
		{name: "a restore since", found: []depot.Found{of("a", "us", 3), of("b", "us", 2)}, code: rowraft.CodeInvalidArgument,
			says: "base b: a restore has replaced the tables since: its table epoch is 2, the cluster's is 3"},
		{name: "a long chain", found: []depot.Found{of("a", "us", 3), of("b", "us", 3, long)},
			code: rowraft.CodeInvalidArgument, says: "16 deltas"},
		{name: "by name", found: []depot.Found{of("a", "us", 3), of("b", "us", 3)}, base: "a", want: "a"},
		{name: "a name that is none", found: []depot.Found{of("a", "us", 3)}, base: "b", code: rowraft.CodeNotFound,
			says: "base b: there is no such"},
		{name: "another cluster's by name", found: []depot.Found{of("a", "them", 3), of("b", "us", 3)}, base: "a",
			code: rowraft.CodeInvalidArgument, says: "it is of cluster them, this is us"},
		{name: "a half by name", found: []depot.Found{incomplete}, base: "half", code: rowraft.CodeNotFound,
			says: "not complete"},
		{name: "a broken one by name", found: []depot.Found{of("a", "us", 3, broken)}, base: "a", code: rowraft.CodeNotFound,
			says: "its parent is missing"},
		{name: "one that goes by name", found: []depot.Found{of("a", "us", 3, deleting)}, base: "a",
			code: rowraft.CodeNotFound, says: "being deleted"},
	} {
		got, err := pickBase(tc.found, tc.base, cluster)
		switch {
		case tc.want != "" && (err != nil || got.Name != tc.want):
			t.Errorf("%s: %v, %v; want %s", tc.name, got, err, tc.want)
		case tc.want == "" && (rowraft.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: %v (%v), want %v, %q", tc.name, err, rowraft.CodeOf(err), tc.code, tc.says)
		}
	}
}

// TestWhatIsDeletedWhileItIsMade: after the manifest is written, a file that it names is absent, or the base is.
func TestWhatIsDeletedWhileItIsMade(t *testing.T) {
	s, _, _ := newSolo(t, 1, nil)
	for _, tc := range []struct {
		name string
		do   func(d depot.Depot) error
		code rowraft.Code
	}{
		{name: "nothing", do: func(depot.Depot) error { return nil }},
		{name: "a file", do: func(d depot.Depot) error { return d.Remove(t.Context(), "b/blob-0000") },
			code: rowraft.CodeNotFound},
		{name: "the base", do: func(d depot.Depot) error { return d.Remove(t.Context(), "a/MANIFEST") },
			code: rowraft.CodeNotFound},
	} {
		dest := t.TempDir()
		d, err := depot.Open(dest)
		if err != nil {
			t.Fatal(err)
		}
		m := s.view.Map()
		base := &checkpoint.Manifest{ID: "id-a", Cluster: m.Cluster, Epoch: m.Epoch, HashVers: 1, Slots: rowraft.DefaultSlots,
			Created: time.Unix(1, 0)}
		part := checkpoint.ShardFile{Stream: checkpoint.File{Name: "r"}, Sums: checkpoint.File{Name: "s"}}
		for slot := range rowraft.DefaultSlots {
			part.Slots = append(part.Slots, rowraft.Slot(slot))
		}
		base.Shards = []checkpoint.ShardFile{part}
		raw, err := base.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string][]byte{"a/MANIFEST": raw} {
			if err := d.Put(t.Context(), name, b); err != nil {
				t.Fatal(err)
			}
		}
		op := &creation{c: s, depot: d, id: uuid.New(), req: &rowraftv1.CreateCheckpointRequest{Name: "b", Delta: true}}
		if _, err := op.open(t.Context()); err != nil || op.base.getName() != "a" {
			t.Fatalf("base %q, %v", op.base.getName(), err)
		}
		made := &checkpoint.Manifest{Blobs: []checkpoint.Blob{{Name: "x",
			File: checkpoint.File{Name: "blob-0000", Bytes: 1}}}}
		if err := d.Put(t.Context(), "b/blob-0000", []byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := tc.do(d); err != nil {
			t.Fatal(err)
		}
		if err := op.stands(t.Context(), made); rowraft.CodeOf(err) != tc.code {
			t.Errorf("%s was deleted: %v, want %v", tc.name, err, tc.code)
		}
		if err := op.cleanUp(); err != nil {
			t.Error(err)
		}
		if _, _, err := depot.Delete(t.Context(), d, "a", false); err != nil && tc.name != "the base" {
			t.Errorf("what gave up still keeps its base: %v", err)
		}
	}
}
