package rowstore

import (
	"fmt"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/shard/rowstore"
	"github.com/rowraft/rowraft/wire"
)

const (
	heldAtMost = 2 // ms that a scan, a scrub or a look for a sweep may hold what apply waits for

	// What package shard looks at under one hold of a lock.
	listEntries = 8192
	wholeSlot   = 4096 // rows
)

// held reports the longest time, by the CPU time of the thread, for which a scrub of the only
// slot of a large tensor, its listing by a scan, and a look for a sweep hold what apply waits
// for; and how long a scan takes for a slot that is just small enough to be read at one moment,
// sorting included.
func held(c config, report func(figures.Figure)) error {
	n := c.rows / 10
	m, small, err := heldMachine(n)
	if err != nil {
		return err
	}
	defer m.Close()
	table, err := rowstore.New(rowstore.Options{Schema: schema(rowraft.Dense, 16)})
	if err != nil {
		return err
	}
	defer table.Close()
	if err := fill(table, 0, n, 1024, nil); err != nil {
		return err
	}
	slot := clustermap.SlotOf(table.Schema().ID, rowraft.Dense, rowraft.DenseKey(0, 0), rowraft.DefaultSlots)
	sweep := &wire.Sweep{Conditions: wire.SweepNorm, Norm: 1e-9}
	keys := make([]rowraft.Key, 0, n)
	var longest [4]times
	for range c.rounds {
		var scrub, list, look, whole times
		for left := n * table.RecordBytes(); left > 0; left -= 64 << 10 {
			if err := scrub.add(func() error { return m.Scrub(64 << 10) }); err != nil {
				return err
			}
		}
		l := table.List(slot)
		for done := false; !done; {
			_ = list.add(func() error { keys, done = l.AppendKeys(keys, listEntries); return nil })
		}
		l.End()
		keys = keys[:0]
		l = table.List(slot)
		for done := false; !done; {
			_ = look.add(func() error { _, _, done = table.CountSweep(l, slot, sweep, 0, listEntries); return nil })
		}
		l.End()
		s, err := m.NewScan(small.ID, rowraft.Float32)
		if err != nil {
			return err
		}
		if err := scanSlot(s, small); err != nil { // makes its buffers
			return err
		}
		if err := whole.add(func() error { return scanSlot(s, small) }); err != nil {
			return err
		}
		for i, t := range []times{scrub, list, look, whole} {
			longest[i] = append(longest[i], t.quantile(1))
		}
	}
	for i, name := range []string{"scrub", "scan-list", "look-for-sweep", "scan-whole-slot"} {
		report(figures.AtMost(fmt.Sprintf("held/rows=%d/%s/longest", n, name),
			float64(longest[i].median())/float64(time.Millisecond), "ms", heldAtMost))
	}
	return nil
}

// heldMachine is a shard with a tensor of n rows, and another one of wholeSlot rows.
func heldMachine(n int) (*benchMachine, rowraft.Schema, error) {
	m, err := shard.New(shard.Config{})
	if err != nil {
		return nil, rowraft.Schema{}, err
	}
	b := &benchMachine{Machine: m}
	b.apply = b.applyNext
	h := wire.EntryHeader{Version: 1, LogTime: 1, Epoch: 1}
	if err := b.apply(wire.OpenSessionEntry(h, wire.Opening{Client: rowraft.ClientID{1}, Incarnation: 1})); err != nil {
		return nil, rowraft.Schema{}, err
	}
	large, small := schema(rowraft.Dense, 16), schema(rowraft.Dense, 16)
	small.ID, small.Name = large.ID+1, "small"
	for s, rows := range map[rowraft.Schema]int{large: n, small: wholeSlot} {
		if err := b.apply(wire.CreateTableEntry(h, &s)); err != nil {
			return nil, s, err
		}
		for from := 0; from < rows; from += partKeys {
			some := make([]rowraft.Key, min(partKeys, rows-from))
			for i := range some {
				some[i] = rowraft.DenseKey(0, uint64(from+i))
			}
			if err := b.push(pushEntry(h, s, some)); err != nil {
				return nil, s, err
			}
		}
	}
	return b, small, nil
}

var heldBuffer [1 << 20]byte

// scanSlot reads all rows of a table of one tensor.
func scanSlot(s *shard.Scan, table rowraft.Schema) (err error) {
	slot := clustermap.SlotOf(table.ID, table.Kind, rowraft.DenseKey(0, 0), rowraft.DefaultSlots)
	buf := heldBuffer[:]
	for key, done := rowraft.Key(0), false; !done && err == nil; {
		_, key, done, err = s.Append(buf[:0], slot, key)
	}
	return err
}
