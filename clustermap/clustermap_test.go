package clustermap

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
)

// TestHashVectors reads vectors that a Python script computed from docs/formats/hash.md.
func TestHashVectors(t *testing.T) {
	text, err := os.ReadFile("../wire/testdata/hash.txt")
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]rowraft.TableKind{"sparse": rowraft.Sparse, "dense": rowraft.Dense}
	n := 0
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var (
			name  string
			table rowraft.TableID
			key   rowraft.Key
			hash  uint64
			slot  rowraft.Slot
		)
		if _, err := fmt.Sscanf(line, "%s %x %x %x %d", &name, &table, &key, &hash, &slot); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		kind := kinds[name]
		if got := Hash(table, kind.PlacementKey(key)); got != hash {
			t.Errorf("%s: hash %x", strings.TrimSpace(line), got)
		}
		if got := SlotOf(table, kind, key, rowraft.DefaultSlots); got != slot {
			t.Errorf("%s: slot %d", strings.TrimSpace(line), got)
		}
		n++
	}
	if n != 144 {
		t.Errorf("read %d vectors, want 144", n)
	}
}

func TestRowsOfOneTensorShareASlot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := rowraft.TableID(rapid.Uint64().Draw(t, "table"))
		tensor := rapid.Uint32Range(0, 1<<24-1).Draw(t, "tensor")
		row := rapid.Uint64Range(0, 1<<40-1).Draw(t, "row")
		want := SlotOf(table, rowraft.Dense, rowraft.DenseKey(tensor, 0), rowraft.DefaultSlots)
		if got := SlotOf(table, rowraft.Dense, rowraft.DenseKey(tensor, row), rowraft.DefaultSlots); got != want {
			t.Fatalf("row %d is in slot %d, row 0 in %d", row, got, want)
		}
	})
}

// TestSlotsAreEven: consecutive keys from 0, which many tables have, spread over the slots about as evenly
// as random keys.
func TestSlotsAreEven(t *testing.T) {
	const perSlot = 64
	var count [rowraft.DefaultSlots]float64
	for k := range rowraft.DefaultSlots * perSlot {
		count[SlotOf(0xA5A5, rowraft.Sparse, rowraft.Key(k), rowraft.DefaultSlots)]++
	}
	chi := 0.0
	for _, c := range count {
		chi += (c - perSlot) * (c - perSlot) / perSlot
	}
	// χ² with 4095 degrees of freedom has mean 4095, deviation 90.5.
	if chi < 4095-5*90.5 || chi > 4095+5*90.5 {
		t.Errorf("χ² = %.0f, want 4095 ± 450", chi)
	}
}

// TestSlotsNest: the slots of a cluster divide the slots of every smaller one, and slots are the top bits of the hash.
func TestSlotsNest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := rapid.Uint64().Draw(t, "hash")
		id := rowraft.JobID{0: byte(h), 15: byte(h >> 8)}
		bits := rapid.IntRange(12, 16).Draw(t, "bits")
		few, many := rowraft.SlotCount(1)<<bits, rowraft.SlotCount(1)<<rapid.IntRange(bits, 16).Draw(t, "more bits")
		slot := SlotOfHash(h, few)
		if want := rowraft.Slot(h >> (64 - bits)); slot != want {
			t.Errorf("hash %x is in slot %d of %d, want %d", h, slot, few, want)
		}
		if part := SlotOfHash(h, many); part/rowraft.Slot(many/few) != slot {
			t.Errorf("hash %x is in slot %d of %d and in slot %d of %d", h, slot, few, part, many)
		}
		if JobSlot(id, many)/rowraft.Slot(many/few) != JobSlot(id, few) {
			t.Errorf("the slots of job %x do not nest", id)
		}
	})
}

func TestSlotCounts(t *testing.T) {
	for n, ok := range map[rowraft.SlotCount]bool{0: false, 1: false, 2048: false, 4095: false, 4096: true, 4097: false,
		8192:  true,
		12288: false, 16384: true, 32768: true, 65536: true, 131072: false, 1 << 31: false} {
		if err := n.Check(); (err == nil) != ok {
			t.Errorf("%d slots: %v", n, err)
		}
	}
}

func TestEvenSlots(t *testing.T) {
	for count := rowraft.SlotCount(rowraft.DefaultSlots); count <= rowraft.MaxSlots; count *= 2 {
		for _, n := range []int{1, 2, 3, 4, 5, 16, 100, 255, 256, 1000, 1024, 2047, 4096} {
			if n > ShardLimit(count) {
				continue
			}
			slots := EvenSlots(n, count)
			size := make([]int, n)
			for _, s := range slots {
				size[s]++
			}
			if !slices.IsSorted(slots) || len(slots) != int(count) || slices.Max(size)-slices.Min(size) > 1 ||
				slices.Min(size) < SlotsPerShard {
				t.Errorf("%d shards of %d slots: sorted %v, %d slots, sizes %d to %d",
					n, count, slices.IsSorted(slots), len(slots), slices.Min(size), slices.Max(size))
			}
		}
	}
	if slots := EvenSlots(0, rowraft.DefaultSlots); slices.Max(slots) != 0 {
		t.Error("without shards a slot belongs to one")
	}
}

func shards(n int) []Shard {
	out := make([]Shard, n)
	for i := range out {
		out[i].ID = rowraft.ShardID(i)
	}
	return out
}

func TestMapFindsWhatItHolds(t *testing.T) {
	m, err := New(Map{
		Version: 3, Shards: shards(4),
		Nodes:  []Node{{ID: "a", Addr: "x:1"}, {ID: "b", Addr: "x:2"}},
		Tables: []rowraft.Schema{{ID: 7, Name: "users"}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for _, s := range m.Shards {
		slots := m.SlotsOf(s.ID)
		total += len(slots)
		for _, slot := range slots {
			if m.ShardOf(slot) != s.ID {
				t.Fatalf("slot %d belongs to shards %d and %d", slot, s.ID, m.ShardOf(slot))
			}
		}
		key, err := m.KeyInShard(7, s.ID)
		if err != nil || m.ShardOf(SlotOf(7, rowraft.Sparse, key, m.SlotCount())) != s.ID {
			t.Errorf("KeyInShard returns key %d for shard %d: %v", key, s.ID, err)
		}
		for k := range key {
			if m.ShardOf(SlotOf(7, rowraft.Sparse, k, m.SlotCount())) == s.ID {
				t.Errorf("key %d is in shard %d and smaller than %d", k, s.ID, key)
			}
		}
	}
	if total != rowraft.DefaultSlots {
		t.Errorf("%d slots belong to a shard, want %d", total, rowraft.DefaultSlots)
	}
	if n, ok := m.Node("b"); !ok || n.Addr != "x:2" {
		t.Errorf("node b: %+v, %v", n, ok)
	}
	if _, ok := m.Node("c"); ok {
		t.Error("node c is there")
	}
	if s, err := m.Table("users"); err != nil || s.ID != 7 {
		t.Errorf("table users: %+v, %v", s, err)
	}
	if _, err := m.Table("items"); rowraft.CodeOf(err) != rowraft.CodeTableNotFound {
		t.Errorf("table items: %v", err)
	}
	if _, err := m.KeyInShard(7, 9); err == nil {
		t.Error("shard 9 has a key")
	}
	m.Slots()[0] = 3
	if m.ShardOf(0) != 0 {
		t.Error("a copy of the slots changed the map")
	}
}

func TestNewRefuses(t *testing.T) {
	swapped := shards(2)
	swapped[0].ID, swapped[1].ID = 1, 0
	foreign := EvenSlots(2, rowraft.DefaultSlots)
	foreign[4095] = 2
	for _, tc := range []struct {
		name  string
		m     Map
		slots []uint16
		code  rowraft.Code
	}{
		{"257 shards", Map{Shards: shards(257)}, nil, rowraft.CodeInvalidArgument},
		{"shards out of order", Map{Shards: swapped}, nil, rowraft.CodeInternal},
		{"2049 shards", Map{Shards: shards(2049)}, make([]uint16, 32768), rowraft.CodeInvalidArgument},
		{"a slot too few", Map{Shards: shards(2)}, make([]uint16, 4095), rowraft.CodeInvalidArgument},
		{"too few slots", Map{Shards: shards(2)}, make([]uint16, 2048), rowraft.CodeInvalidArgument},
		{"too many slots", Map{Shards: shards(2)}, make([]uint16, 131072), rowraft.CodeInvalidArgument},
		{"a slot of a shard that is not there", Map{Shards: shards(2)}, foreign, rowraft.CodeInternal},
	} {
		if _, err := New(tc.m, tc.slots); rowraft.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.code)
		}
	}
}

// TestMapOfManyShards: nothing in a map assumes 256 shards or 4,096 slots.
func TestMapOfManyShards(t *testing.T) {
	for _, tc := range []struct {
		shards int
		slots  rowraft.SlotCount
	}{{256, 4096}, {1024, 16384}, {1024, 65536}, {MaxShards, rowraft.MaxSlots}} {
		m, err := New(Map{Shards: shards(tc.shards)}, EvenSlots(tc.shards, tc.slots))
		if err != nil {
			t.Fatal(err)
		}
		last := rowraft.ShardID(tc.shards - 1)
		if own := m.SlotsOf(last); len(own) == 0 || own[len(own)-1] != rowraft.Slot(tc.slots-1) ||
			m.ShardOfHash(1<<64-1) != last || m.ShardOfHash(0) != 0 {
			t.Errorf("%d shards, %d slots: the last shard has %d slots, and the last hash is in shard %d", tc.shards, tc.slots,
				len(own), m.ShardOfHash(1<<64-1))
		}
		for _, id := range []rowraft.ShardID{0, last / 2, last} {
			if k, err := m.KeyInShard(7, id); err != nil || m.ShardOf(SlotOf(7, rowraft.Sparse, k, tc.slots)) != id {
				t.Errorf("KeyInShard returns key %d for shard %d: %v", k, id, err)
			}
		}
	}
}
