package rowstore

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/rowraft/rowraft"
)

// TestHistoryScripts runs the scripts of testdata/histories on a dense table whose rows count their pushes. A tensor is
// one slot. `go test ./shard/rowstore -run TestHistoryScripts -rewrite` replaces the output.
//
//	push KEYS              pushes to each row; KEYS is FROM-TO, or TENSOR:FROM-TO (default: tensor 1)
//	delete KEYS
//	begin NAME ...         begins snapshots
//	read NAME [entries=N]  reads slot 1 of a snapshot: N entries of the index, or all that is left; then its rows
//	end NAME ...
//	memory                 the index segments that are kept for snapshots, and whether exactly one segment is left
func TestHistoryScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/histories", func(t *testing.T, path string) {
		table := evenTable(t, rowraft.Dense, 1)
		snaps, records := make(map[string]*Snapshot), make(map[string][]byte)
		slot, _ := table.index.locate(rowraft.DenseKey(1, 0))
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var names []string
			for _, a := range d.CmdArgs {
				if len(a.Vals) == 0 {
					names = append(names, a.Key)
				}
			}
			var out []string
			switch d.Cmd {
			case "push":
				keys := keysOf(t, names[0])
				grads := make([]float32, len(keys))
				for i := range grads {
					grads[i] = -10 // with the learning rate 0.1
				}
				mustUpdate(t, table, keys, grads)
			case "delete":
				mustDelete(t, table, keysOf(t, names[0])...)
			case "begin":
				for _, name := range names {
					s, err := table.BeginSnapshot()
					if err != nil {
						out = append(out, fmt.Sprintf("%s: %s", name, rowraft.CodeOf(err)))
						continue
					}
					snaps[name] = s
					out = append(out, fmt.Sprintf("%s: %d rows", name, s.Rows()))
				}
			case "read":
				entries, s := 1<<20, snaps[names[0]]
				d.MaybeScanArgs(t, "entries", &entries)
				b, done := s.AppendSlot(records[names[0]], slot, entries)
				if records[names[0]] = b; !done {
					return "not done"
				}
				return runs(countsOf(t, s, b))
			case "end":
				for _, name := range names {
					if err := snaps[name].End(); err != nil {
						t.Fatal(err)
					}
				}
			case "memory":
				table.index.reclaim() // frees what no reader holds
				table.index.reclaim()
				used, one := table.index.blocks.Stats().UsedBytes, int64(len(table.index.slots[slot].whole.root.load())*8)
				return fmt.Sprintf("%d segments are kept, one segment is left: %v", len(table.snaps.outgrown), used == one)
			default:
				t.Fatalf("unknown command %s", d.Cmd)
			}
			return strings.Join(out, "\n")
		})
	})
}

// keysOf returns the keys of a script's range.
func keysOf(t *testing.T, text string) (keys []rowraft.Key) {
	t.Helper()
	tensor, from, to := uint32(1), uint64(0), uint64(0)
	if before, after, ok := strings.Cut(text, ":"); ok {
		fmt.Sscan(before, &tensor)
		text = after
	}
	if _, err := fmt.Sscanf(text, "%d-%d", &from, &to); err != nil {
		t.Fatalf("keys %q: %v", text, err)
	}
	for k := from; k <= to; k++ {
		keys = append(keys, rowraft.DenseKey(tensor, k))
	}
	return keys
}

// countsOf restores the records of a snapshot into another table and returns what each row counts. A key that is in
// them twice, and another digest than the snapshot's, fail the test.
func countsOf(t *testing.T, s *Snapshot, records []byte) map[rowraft.Key]int {
	t.Helper()
	into, counts := mustNew(t, s.t.Schema()), make(map[rowraft.Key]int)
	for n := into.RecordBytes(); len(records) > 0; records = records[n:] {
		k := rowraft.Key(binary.LittleEndian.Uint64(records[8:]))
		if _, twice := counts[k]; twice {
			t.Fatalf("key %#x is in the snapshot twice", uint64(k))
		}
		if err := into.RestoreRow(records[:n]); err != nil {
			t.Fatal(err)
		}
		counts[k] = countIn(t, into, k)
	}
	if into.Digest() != s.Digest() || into.Rows() != s.Rows() {
		t.Fatalf("the records have %d rows and digest %v, the snapshot %d and %v", into.Rows(), into.Digest(), s.Rows(),
			s.Digest())
	}
	return counts
}

func countIn(t *testing.T, table *Table, k rowraft.Key) int {
	t.Helper()
	var w [4]byte
	if err := table.Pull([]rowraft.Key{k}, w[:], rowraft.Float32, nil); err != nil {
		t.Fatal(err)
	}
	return int(math.Float32frombits(binary.LittleEndian.Uint32(w[:])) + 0.5)
}

// runs prints counts as runs of rows with equal counts.
func runs(counts map[rowraft.Key]int) string {
	if len(counts) == 0 {
		return "no rows"
	}
	var out []string
	keys := slices.Sorted(maps.Keys(counts))
	for i := 0; i < len(keys); {
		j := i + 1
		for j < len(keys) && keys[j] == keys[j-1]+1 && counts[keys[j]] == counts[keys[i]] {
			j++
		}
		first := rowraft.DenseKey(1, 0)
		out = append(out, fmt.Sprintf("%d-%d: %d", keys[i]-first, keys[j-1]-first, counts[keys[i]]))
		i = j
	}
	return strings.Join(out, "\n")
}
