package rowstore

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// flood pushes keys that were chosen by the public hash of keys, and as many ordinary
// ones, as one entry each to new tables, twice: first they make rows, or candidates,
// then they find them. The figures are the CPU time of the first and of the second
// push, in those of an ordinary push. A table with a capacity is full before: each row that is
// made takes another one out, wherever its key is.
func flood(c config, report func(figures.Figure)) error {
	plain := schema(rowraft.Sparse, 1)
	counted, full := plain, plain
	counted.Admission = rowraft.Admission{Kind: rowraft.AdmitCount, Count: 3}
	full.Capacity = rowraft.Capacity{Rows: 256 * rowraft.DefaultSlots, Evict: rowraft.EvictLFU}
	for _, n := range []int{32 << 10, rowraft.MaxKeysPerPart} {
		for _, table := range []struct {
			name string
			s    rowraft.Schema
		}{{"plain", plain}, {"candidates", counted}, {"capacity", full}} {
			var ordinary [2]float64
			for _, k := range floodKinds {
				took, err := floodTimes(c.rounds, table.s, k.keys(table.s.ID, n))
				if err != nil {
					return err
				}
				for i, push := range []string{"first", "second"} {
					name := fmt.Sprintf("flood/%s/keys=%d/%s/%s-push", table.name, n, k.name, push)
					if k.name == "ordinary" {
						ordinary[i] = took[i]
						report(figures.Free(name, took[i], "ms"))
						continue
					}
					of := ordinary[i]
					if table.s.Capacity.Rows > 0 {
						of = ordinary[0] // the second push finds no more rows than the first
					}
					report(figures.AtMost(name, took[i]/of, "× ordinary", 3))
				}
			}
		}
	}
	return nil
}

// floodKind is a way to choose keys: by their public hashes.
type floodKind struct {
	name string
	hash func(i uint64) uint64
}

var floodKinds = []floodKind{
	{"ordinary", clustermap.Mix64},
	{"equal-low-bits", func(i uint64) uint64 { return uint64(uint32(i)*0x9E3779B1)<<32 | 77 }},
	{"one-slot", func(i uint64) uint64 { return 5<<52 | i*0x9E3779B97F4A7C15>>12 }},
	{"one-slot-and-equal-low-bits", func(i uint64) uint64 { return 5<<52 | i<<32 | 77 }},
}

// keys returns n keys of table with the hashes of the kind, ascending.
func (k floodKind) keys(table rowraft.TableID, n int) []rowraft.Key {
	keys := make([]rowraft.Key, n)
	for i := range keys {
		keys[i] = rowraft.Key(unmix64(k.hash(uint64(i))) ^ clustermap.TableSeed(table))
	}
	slices.SortFunc(keys, cmp.Compare[rowraft.Key])
	return keys
}

// floodTimes returns the milliseconds of CPU time that two pushes of keys to a new table
// take, the medians of rounds.
func floodTimes(rounds int, s rowraft.Schema, keys []rowraft.Key) (took [2]float64, err error) {
	var all [2]times
	for range rounds {
		m, err := shard.New(shard.Config{})
		if err != nil {
			return took, err
		}
		b := &benchMachine{Machine: m}
		b.apply = b.applyNext
		h := wire.EntryHeader{Version: 1, LogTime: 1, Epoch: 1}
		if err := b.apply(wire.OpenSessionEntry(h, wire.Opening{Client: rowraft.ClientID{1}, Incarnation: 1})); err != nil {
			return took, err
		}
		if err := b.apply(wire.CreateTableEntry(h, &s)); err != nil {
			return took, err
		}
		for i := 0; i < int(s.Capacity.Rows)*5/4; i += rowraft.MaxKeysPerPart {
			others := floodKind{hash: func(k uint64) uint64 { return clustermap.Mix64(1<<40 + uint64(i) + k) }}
			if err := b.push(pushEntry(h, s, others.keys(s.ID, rowraft.MaxKeysPerPart))); err != nil {
				return took, err
			}
		}
		entry := pushEntry(h, s, keys)
		for i := range all {
			if err := all[i].add(func() error { return b.push(entry) }); err != nil {
				return took, err
			}
		}
		if err := m.Close(); err != nil {
			return took, err
		}
	}
	for i := range all {
		took[i] = float64(all[i].median()) / 1e6
	}
	return took, nil
}

// unmix64 is the inverse of clustermap.Mix64.
func unmix64(z uint64) uint64 {
	z = (z ^ z>>31 ^ z>>62) * 0x319642B2D24D8EC3
	z = (z ^ z>>27 ^ z>>54) * 0x96DE1B173F119089
	return z ^ z>>30 ^ z>>60
}
