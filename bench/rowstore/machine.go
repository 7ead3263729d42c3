package main

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// machineRows is the size of the shard that is pulled from while it applies.
const machineRows = 1_000_000

// machine measures a shard: applies with and without pulls beside them, pulls
// with and without applies, and how long the slowest entries took.
func machine(c config, report func(figure)) error {
	m, err := newBenchMachine(16, machineRows, 1)
	if err != nil {
		return err
	}
	defer m.Close()
	type phase struct {
		name    string
		pullers int
		apply   bool
	}
	phases := []phase{{"apply-alone", 0, true}, {"pull-alone", 2, false}, {"both", 2, true}}
	figures := map[string][]float64{}
	for range c.rounds {
		for _, p := range phases {
			applied, pulled, slow, err := m.run(p.pullers, p.apply, 400*time.Millisecond)
			if err != nil {
				return err
			}
			if p.apply {
				figures["machine/apply/"+p.name] = append(figures["machine/apply/"+p.name], applied)
				figures["machine/apply-p99/"+p.name] = append(figures["machine/apply-p99/"+p.name], slow)
			}
			if p.pullers > 0 {
				figures["machine/pull/"+p.name] = append(figures["machine/pull/"+p.name], pulled)
			}
		}
	}
	for _, name := range []string{
		"machine/apply/apply-alone", "machine/apply/both", "machine/apply-p99/apply-alone", "machine/apply-p99/both",
		"machine/pull/pull-alone", "machine/pull/both",
	} {
		values, unit := figures[name], "Mrows/s"
		if name[:len("machine/apply-p99")] == "machine/apply-p99" {
			unit = "ms"
		}
		slices.Sort(values)
		report(free(name, values[len(values)/2], unit))
	}
	return nil
}

// benchMachine is a shard with what it is asked.
type benchMachine struct {
	*shard.Machine
	index   rowraft.Index
	seq     uint64
	entries [][]byte
	asks    [][]byte
}

const partKeys = 7000 // 512 KiB, one entry

// newBenchMachine has rows in all, spread over so many tables; pushes and pulls are
// of the last one.
func newBenchMachine(dim, rows, tables int) (*benchMachine, error) {
	m, err := shard.New(shard.Config{})
	if err != nil {
		return nil, err
	}
	b := &benchMachine{Machine: m}
	h := wire.EntryHeader{Version: 1, LogTime: 1, Epoch: 1}
	if err := b.apply(wire.OpenSessionEntry(h, rowraft.ClientID{1}, 1)); err != nil {
		return nil, err
	}
	var s rowraft.Schema
	for t := range tables {
		s = schema(rowraft.Sparse, dim)
		s.ID, s.Name = rowraft.TableID(1+t), fmt.Sprint("t", t)
		if err := b.apply(wire.CreateTableEntry(h, &s)); err != nil {
			return nil, err
		}
		keys := make([]rowraft.Key, min(partKeys, rows/tables))
		for k := 0; k < rows/tables; k += len(keys) {
			for i := range keys {
				keys[i] = rowraft.Key(k + i)
			}
			if err := b.push(pushEntry(h, s, keys)); err != nil {
				return nil, err
			}
		}
	}
	for _, keys := range batches("uniform", rows/tables, 32, true) {
		b.asks = append(b.asks, segment(s, keys, wire.FlagNoValues))
		slices.Sort(keys[:partKeys])
		b.entries = append(b.entries, pushEntry(h, s, keys[:partKeys]))
	}
	return b, nil
}

func segment(s rowraft.Schema, keys []rowraft.Key, flags uint8) []byte {
	seg := wire.Segment{Table: s.ID, N: len(keys), Dim: s.Dim, DType: rowraft.Float32, Flags: flags}
	b := make([]byte, seg.Size())
	body := seg.Put(b)
	for i, k := range keys {
		binary.LittleEndian.PutUint64(body.Keys[8*i:], uint64(k))
	}
	if flags&wire.FlagNoValues == 0 {
		wire.PutFloats(body.Values, seg.DType, someGradients(len(keys)*s.Dim))
	}
	return b
}

func pushEntry(h wire.EntryHeader, s rowraft.Schema, keys []rowraft.Key) []byte {
	h.Kind, h.Parts = wire.EntryParts, 1
	b := make([]byte, wire.EntryHeaderSize)
	wire.PutEntryHeader(b, h)
	return wire.AppendPart(b, &wire.Part{Client: rowraft.ClientID{1}, Incarnation: 1, Op: wire.OpPush, Payload: segment(s, keys, 0)})
}

// push gives the only part of entry the next number and applies it.
func (b *benchMachine) push(entry []byte) error {
	b.seq++
	binary.LittleEndian.PutUint64(entry[wire.EntryHeaderSize+24:], b.seq)
	binary.LittleEndian.PutUint64(entry[wire.EntryHeaderSize+32:], b.seq-1)
	return b.apply(entry)
}

func (b *benchMachine) apply(entry []byte) error {
	b.index++
	switch a := b.Apply(b.index, entry).(type) {
	case *shard.Applied:
		if p := a.Parts[0]; p.Err != nil || p.Duplicate {
			return fmt.Errorf("entry %d: %+v", b.index, p)
		}
		return nil
	case error:
		return a
	}
	return fmt.Errorf("entry %d was not applied", b.index)
}

// run returns millions of rows a second applied and pulled, and the 99th
// percentile of an entry's time in ms.
func (b *benchMachine) run(pullers int, apply bool, d time.Duration) (applied, pulled, slow float64, err error) {
	var stop atomic.Bool
	var pulls atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, pullers)
	begin := time.Now()
	for p := range pullers {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for i := p; !stop.Load(); i++ {
				if _, _, err := b.Pull(b.asks[i%len(b.asks)], false, func(n int) []byte { return buf[:n] }); err != nil {
					errs <- err
					return
				}
				pulls.Add(1)
			}
		})
	}
	var times []time.Duration
	if apply {
		for i := 0; time.Since(begin) < d && err == nil; i++ {
			start := time.Now()
			err = b.push(b.entries[i%len(b.entries)])
			times = append(times, time.Since(start))
			runtime.Gosched()
		}
	} else {
		time.Sleep(d)
	}
	seconds := time.Since(begin).Seconds()
	pulled = float64(pulls.Load()*batchKeys) / seconds / 1e6
	stop.Store(true)
	wg.Wait()
	select {
	case err = <-errs:
	default:
	}
	if len(times) > 0 {
		applied = float64(len(times)*partKeys) / seconds / 1e6
		slices.Sort(times)
		slow = float64(times[len(times)*99/100]) / 1e6
	}
	return applied, pulled, slow, err
}
