package rowstore

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard/rowstore/candidate"
	"github.com/rowraft/rowraft/wire"
)

// Secrets for tests: with the first one the tag of a key is its low half; with the second one all tags are 0.
var (
	lowHalf = secret{0, 1, 0, 1}
	noTags  = secret{}
)

// equalTags sets a secret of table, which must be empty, with which n keys of slot have tag 77, and returns
// these keys.
func equalTags(table *Table, slot rowraft.Slot, n int) (keys []rowraft.Key) {
	table.index.secret = lowHalf
	for i := uint64(0); len(keys) < n; i++ {
		if k := rowraft.Key(i<<32 | 77); table.index.slotOf(k) == slot {
			keys = append(keys, k)
		}
	}
	return keys
}

// chosenKeys returns n keys of one slot, or with equal low bits of their public hash, or both, as a client
// can choose them.
func chosenKeys(table rowraft.TableID, n int, oneSlot, lowBits bool) []rowraft.Key {
	keys := make([]rowraft.Key, n)
	for i := range keys {
		h := clustermap.Mix64(uint64(i))
		switch {
		case oneSlot && lowBits:
			h = uint64(5)<<52 | uint64(i)<<32 | 77
		case oneSlot:
			h = uint64(5)<<52 | uint64(i)*0x9E3779B97F4A7>>12
		case lowBits:
			h = uint64(uint32(i)*0x9E3779B1)<<32 | 77
		}
		keys[i] = rowraft.Key(unmix64(h) ^ clustermap.TableSeed(table))
	}
	slices.Sort(keys)
	return keys
}

// probes returns the number of index entries that a lookup of a row reads, on average and at most.
func probes(t *Table) (mean float64, most int) {
	sum, rows := 0, 0
	for i := range t.index.slots {
		for b := range t.index.slots[i].buckets() {
			seg := b.root.load()
			for at, e := range seg {
				if isRow(e) {
					n := 1 + (at-int(e>>32))&(len(seg)-1)
					sum, rows, most = sum+n, rows+1, max(most, n)
				}
			}
		}
	}
	return float64(sum) / float64(max(rows, 1)), most
}

// candidateProbes is probes for candidates.
func candidateProbes(t *Table) (mean float64, most int) {
	sum, n := 0, 0
	for i := range t.track.slots {
		set := &t.track.slots[i]
		t.track.eachCandidate(rowraft.Slot(i), func(at uint32, c candidate.Candidate) {
			far := 1 + int((at-t.index.secret.Tag(c.Key))&set.Mask())
			sum, n, most = sum+far, n+1, max(most, far)
		})
	}
	return float64(sum) / float64(max(n, 1)), most
}

// TestChosenKeysAreFoundSoon: a lookup of a key that a client chose by the public hash reads as few entries
// as any other lookup, both for rows and for candidates. 3 is the average of linear probing at the highest
// load, 0.8.
func TestChosenKeysAreFoundSoon(t *testing.T) {
	for _, n := range []int{1 << 15, 1 << 18} {
		for _, tc := range []struct {
			name             string
			oneSlot, lowBits bool
		}{{"any", false, false}, {"equal low bits", false, true}, {"one slot", true, false},
			{"one slot and equal low bits", true, true}} {
			if tc.oneSlot && tc.lowBits && n > 1<<15 {
				continue // there are 2^20 such keys: TestTagsOfChosenKeysSpread
			}
			t.Run(fmt.Sprintf("%s/%d", tc.name, n), func(t *testing.T) {
				schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
				rows := mustNew(t, schema)
				keys := chosenKeys(schema.ID, n, tc.oneSlot, tc.lowBits)
				mustUpdate(t, rows, keys, make([]float32, n))
				if mean, most := probes(rows); rows.Rows() != n || mean > 3 || most > 500 {
					t.Errorf("%d rows: found after %.1f entries, at most %d", rows.Rows(), mean, most)
				}
				schema.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
				waiting := mustNew(t, schema)
				mustUpdate(t, waiting, keys, make([]float32, n))
				if mean, most := candidateProbes(waiting); mean > 3 || most > 500 {
					t.Errorf("candidates: found after %.1f entries, at most %d", mean, most)
				}
			})
		}
	}
}

// TestTagsOfChosenKeysSpread: with any secret, the tags of keys with a pattern fall evenly into 1,024
// ranges, by their first bits and by their last bits.
func TestTagsOfChosenKeysSpread(t *testing.T) {
	const parts, per = 1 << 10, 256
	rng := rand.New(rand.NewPCG(8, 16))
	for _, tc := range []struct {
		name string
		key  func(i uint64) uint64
	}{
		{"ascending", func(i uint64) uint64 { return i }},
		{"steps of 4096", func(i uint64) uint64 { return i << 12 }},
		{"the high half", func(i uint64) uint64 { return i << 46 }},
		{"equal hash but for 20 bits", func(i uint64) uint64 { return unmix64(uint64(5)<<52 | i<<32 | 77) }},
		{"one bit in a hundred", func(i uint64) uint64 { return i * i << 17 }},
	} {
		for range 20 {
			s := newSecret()
			for i := range s { // deterministic, so that a failure is reproducible
				s[i] = rng.Uint64() | s[i]&1&uint64(i)
			}
			s[1], s[3] = s[1]|1, s[3]|1
			var first, last [parts]int
			for i := range uint64(parts * per) {
				tag := s.Tag(rowraft.Key(tc.key(i)))
				first[tag>>22]++
				last[tag&(parts-1)]++
			}
			for _, of := range [][parts]int{first, last} {
				// Chance gives 256 ± 16; 1 in 10^9 is beyond 6.1 of these.
				if lo, hi := slices.Min(of[:]), slices.Max(of[:]); lo < per-112 || hi > per+112 {
					t.Errorf("%s, secret %x: ranges of %d to %d keys, want about %d", tc.name, s, lo, hi, per)
				}
			}
		}
	}
}

// TestSecretsDiffer: tables of one schema have different tags.
func TestSecretsDiffer(t *testing.T) {
	schema := testSchema(rowraft.Sparse, rowraft.SGD, 1)
	if a, b := mustNew(t, schema), mustNew(t, schema); a.index.secret == b.index.secret {
		t.Errorf("two tables have the secret %x", a.index.secret)
	}
}

// listed returns the keys of slot.
func listed(table *Table, slot rowraft.Slot) []rowraft.Key {
	l := table.List(slot)
	defer l.End()
	keys, _ := l.AppendKeys(nil, 1<<30)
	return keys
}

// everything returns all state that a table exposes. It sorts the rows of a slot, which have no order in a
// snapshot.
func everything(t *testing.T, table *Table) string {
	t.Helper()
	snap, err := table.BeginSnapshot()
	if err != nil {
		t.Fatal(err)
	}
	defer snap.End()
	out := fmt.Sprintf("%d rows, %d candidates, digest %v, %+v\n",
		table.Rows(), snap.Candidates(), table.Digest(), table.Counters())
	size := table.RecordBytes()
	for slot := range rowraft.Slot(rowraft.DefaultSlots) {
		var b []byte
		for done := false; !done; {
			b, done = snap.AppendSlot(b, slot, 100)
		}
		records := slices.Collect(slices.Chunk(b, size))
		slices.SortFunc(records, func(a, b []byte) int {
			return cmp.Compare(binary.LittleEndian.Uint64(a[keyOffset:]), binary.LittleEndian.Uint64(b[keyOffset:]))
		})
		if c := snap.Slot(slot); c.Version > 0 {
			out += fmt.Sprintf("slot %d %+v: %x, %x\n", slot, c, records, snap.AppendCandidates(nil, slot))
		}
		keys := listed(table, slot)
		slices.Sort(keys)
		for i, k := range keys {
			if got := rowraft.Key(binary.LittleEndian.Uint64(records[i][keyOffset:])); got != k || len(keys) != len(records) {
				t.Fatalf("slot %d: key %d of %d is %d, record %d of %d is of %d", slot, i, len(keys), k, i, len(records), got)
			}
		}
		if _, _, ok := table.CheckSlot(slot, 1<<30); !ok {
			t.Fatalf("CheckSlot reports damage in slot %d", slot)
		}
	}
	return out
}

// TestNothingDependsOnTheSecret applies the same changes with several secrets: rows, candidates, versions,
// digests, evictions and sweeps are the same at each step.
func TestNothingDependsOnTheSecret(t *testing.T) {
	base := testSchema(rowraft.Sparse, rowraft.Adagrad, 2)
	lru, lfu, counted, drawn, dense := base, base, base, base, base
	lru.Capacity = rowraft.Capacity{Rows: 30 * rowraft.DefaultSlots, Evict: rowraft.EvictLRU}
	lfu.Capacity = rowraft.Capacity{Rows: 30 * rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
	counted.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	counted.Capacity = rowraft.Capacity{Rows: 8 * rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
	drawn.Admission, drawn.Expire = rowraft.Admission{Kind: rowraft.AdmitProbability, Probability: 0.5}, 3
	dense.Kind = rowraft.Dense
	for name, schema := range map[string]rowraft.Schema{"plain": base, "lru": lru, "lfu": lfu, "counted": counted,
		"drawn": drawn, "dense": dense} {
		t.Run(name, func(t *testing.T) {
			var tables []*Table
			for _, s := range []secret{newSecret(), newSecret(), lowHalf, noTags} {
				table := mustNew(t, schema)
				table.index.secret, table.index.longest = s, 64
				tables = append(tables, table)
			}
			rng := rand.New(rand.NewPCG(1, uint64(len(name))))
			pool := chosenKeys(schema.ID, 600, true, false) // one slot is full and has a directory
			for k := range rowraft.Key(400) {
				pool = append(pool, k)
			}
			for step := range 60 {
				var keys []rowraft.Key
				for range 1 + rng.IntN(300) {
					keys = append(keys, pool[rng.IntN(len(pool))])
				}
				grads := make([]float32, 2*len(keys))
				for i := range grads {
					grads[i] = rng.Float32()
				}
				sweep := wire.Sweep{Conditions: wire.SweepNorm, Norm: 0.2 * rng.Float32()}
				if schema.Tracked() && step%2 == 0 {
					sweep = wire.Sweep{Conditions: wire.SweepUnseen, Unseen: uint32(rng.IntN(4))}
				}
				what, want := rng.IntN(8), ""
				for i, table := range tables {
					table.SetTick(uint32(step))
					said := ""
					switch {
					case what == 0:
						mustDelete(t, table, keys[:len(keys)/4]...)
					case what == 1 && schema.Kind == rowraft.Sparse:
						for slot := range rowraft.Slot(rowraft.DefaultSlots) {
							l := table.List(slot)
							wouldRows, wouldWait, _ := table.CountSweep(l, slot, &sweep, uint32(step), 1<<30)
							l.End()
							rows, waiting, err := table.Sweep(slot, &sweep, uint32(step))
							if err != nil || rows != wouldRows || waiting != wouldWait {
								t.Fatalf("slot %d: swept %d rows and %d candidates, %v; counted %d and %d before",
									slot, rows, waiting, err, wouldRows, wouldWait)
							}
							if rows+waiting > 0 {
								said += fmt.Sprintf("slot %d: swept %d and %d\n", slot, rows, waiting)
							}
						}
					default:
						mustUpdate(t, table, keys, grads)
					}
					if step%10 == 9 {
						said += everything(t, table)
					} else {
						said += fmt.Sprint(table.Digest(), table.Rows(), table.Counters())
					}
					if i == 0 {
						want = said
					} else if said != want {
						t.Fatalf("step %d: with another secret the table has\n%.2000s\nwant\n%.2000s", step, said, want)
					}
				}
			}
		})
	}
}
