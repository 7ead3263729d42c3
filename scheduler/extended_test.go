package scheduler

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestGoldenExtendedTable reads entries and snapshots of versions 4 and 6
// that testdata/golden.py wrote by hand from docs/formats/metadata.md.
func TestGoldenExtendedTable(t *testing.T) {
	goldenTable(t, "create_extended.entry", "extended.snapshot", rowraft.Schema{
		ID: 7, Name: "ads", Kind: rowraft.Sparse, Dim: 16,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		Storage: rowraft.BFloat16, Admission: rowraft.Admission{Kind: rowraft.AdmitProbability, Probability: 0.5}, Expire: 3600,
		Capacity: rowraft.Capacity{Rows: 4096, Evict: rowraft.EvictLRU},
	})
	goldenTable(t, "create_ftrl.entry", "ftrl.snapshot", rowraft.Schema{
		ID: 8, Name: "clicks", Kind: rowraft.Sparse, Dim: 1, Initializer: rowraft.Initializer{Kind: rowraft.InitZeros},
		Optimizer: rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.125, Bound: 10, L1: 1, L2: 2, Beta: 0.5},
	})
}

func goldenTable(t *testing.T, entryFile, snapshotFile string, want rowraft.Schema) {
	t.Helper()
	entry, err := os.ReadFile(filepath.Join("testdata", entryFile))
	if err != nil {
		t.Fatal(err)
	}
	var c rowraftv1.MetaCommand
	if err := decodeFrame(bytes.NewReader(entry), entryMagic, &c); err != nil {
		t.Fatal(err)
	}
	if got := rpc.SchemaFromProto(c.GetCreateTable().GetTable()); got != want {
		t.Errorf("entry reads %+v, want %+v", got, want)
	}
	if again, err := encodeCommand(&c); err != nil || !bytes.Equal(again, entry) {
		t.Errorf("the entry encodes to %x (%v), want %x", again, err, entry)
	}
	snap, err := os.ReadFile(filepath.Join("testdata", snapshotFile))
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(NewView())
	if err := m.Restore(bytes.NewReader(snap)); err != nil {
		t.Fatal(err)
	}
	if got := m.view.Map().Tables; len(got) != 1 || got[0] != want {
		t.Errorf("the snapshot reads %+v, want %+v", got, want)
	}
	if !bytes.Equal(snapshotBytes(t, m), snap) {
		t.Errorf("the snapshot encodes to %x, want %x", snapshotBytes(t, m), snap)
	}
}

// TestFloat32ByNameIsTheOldVersion: who names the default is understood by
// members that know version 1 only.
func TestFloat32ByNameIsTheOldVersion(t *testing.T) {
	s := rowraft.Schema{Name: "t", Kind: rowraft.Sparse, Dim: 1, Storage: rowraft.Float32,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1}}
	c := &rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_CreateTable{CreateTable: &rowraftv1.MetaCreateTable{Table: rpc.SchemaToProto(&s)}}}
	if v := versionOf(c); v != 1 {
		t.Errorf("version %d, want 1", v)
	}
	s.Expire = 1
	c.GetCreateTable().Table = rpc.SchemaToProto(&s)
	if v := versionOf(c); v != 4 {
		t.Errorf("with an expiry: version %d, want 4", v)
	}
	for _, o := range []rowraft.Optimizer{
		{Kind: rowraft.Momentum}, {Kind: rowraft.SGD, WeightDecay: 1}, {Kind: rowraft.SGD, Bound: 1}, {Kind: rowraft.SGD, Momentum: 1},
		{Kind: rowraft.SGD, L1: 1}, {Kind: rowraft.SGD, L2: 1}, {Kind: rowraft.SGD, Beta: 1},
	} {
		s.Optimizer = o
		c.GetCreateTable().Table = rpc.SchemaToProto(&s)
		if v := versionOf(c); v != 6 {
			t.Errorf("with %s: version %d, want 6", o, v)
		}
	}
}
