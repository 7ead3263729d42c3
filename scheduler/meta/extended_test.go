package meta

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/rpc"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// TestGoldenExtendedTable reads entries and snapshots that testdata/golden.py wrote by hand from
// docs/formats/metadata.md.
func TestGoldenExtendedTable(t *testing.T) {
	goldenTable(t, "create_extended.entry", "extended", rowraft.Schema{
		ID: 7, Name: "ads", Kind: rowraft.Sparse, Dim: 16,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0xa9c7f9322862f290},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		Storage:     rowraft.BFloat16, Admission: rowraft.Admission{Kind: rowraft.AdmitProbability, Probability: 0.5},
		Expire:   3600,
		Capacity: rowraft.Capacity{Rows: 4096, Evict: rowraft.EvictLRU},
	})
	goldenTable(t, "create_ftrl.entry", "ftrl", rowraft.Schema{
		ID: 8, Name: "clicks", Kind: rowraft.Sparse, Dim: 1,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0xd8be24e0bbc444a7},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.FTRL, LR: 0.125, Bound: 10, L1: 1, L2: 2, Beta: 0.5},
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
	if got := goldenMachine(t, snapshotFile).view.Map().Tables; len(got) != 1 || got[0] != want {
		t.Errorf("the snapshot reads %+v, want %+v", got, want)
	}
}
