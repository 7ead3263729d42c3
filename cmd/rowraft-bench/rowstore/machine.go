package rowstore

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// machineRows is the size of the shard that is pulled from while it applies.
const machineRows = 1_000_000

// machine measures a shard: applies with and without two concurrent pullers, by
// the CPU time of the applying thread and by how often it had to wait for another goroutine
// else; and pulls with and without applies, by the clock.
func machine(c config, report func(figures.Figure)) error {
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
	rates := map[string][]float64{}
	for range c.rounds {
		for _, p := range phases {
			r, err := m.run(p.pullers, p.apply, 400*time.Millisecond)
			if err != nil {
				return err
			}
			if p.apply {
				rates["machine/apply/"+p.name] = append(rates["machine/apply/"+p.name], r.applied)
				rates["machine/waits/"+p.name] = append(rates["machine/waits/"+p.name], r.waits)
			}
			if p.pullers > 0 {
				rates["machine/pull/"+p.name] = append(rates["machine/pull/"+p.name], r.pulled)
			}
		}
	}
	for _, name := range []string{
		"machine/apply/apply-alone", "machine/apply/both", "machine/waits/apply-alone", "machine/waits/both",
		"machine/pull/pull-alone", "machine/pull/both",
	} {
		values, unit := rates[name], "Mrows/s"
		if strings.HasPrefix(name, "machine/waits/") {
			unit = "per entry"
		}
		slices.Sort(values)
		report(figures.Free(name, values[len(values)/2], unit))
	}
	return nil
}

// benchMachine is a shard with what it is asked.
type benchMachine struct {
	*shard.Machine
	apply   func(entry []byte) error // one entry more
	index   rowraft.Index
	seq     uint64
	entries [][]byte
	asks    [][]byte
	rows    int // of the table that is pushed to
	dim     int
	random  *rand.Rand
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
	b.apply = b.applyNext
	return b, b.fill(dim, rows, tables)
}

// fill makes tables and rows.
func (b *benchMachine) fill(dim, rows, tables int) error {
	b.dim, b.rows, b.random = dim, rows/tables, rand.New(rand.NewPCG(1, 2))
	h := wire.EntryHeader{Version: 1, LogTime: 1, Epoch: 1}
	if err := b.apply(wire.OpenSessionEntry(h, wire.Opening{Client: rowraft.ClientID{1}, Incarnation: 1})); err != nil {
		return err
	}
	var s rowraft.Schema
	for t := range tables {
		s = schema(rowraft.Sparse, dim)
		s.ID, s.Name = rowraft.TableID(1+t), fmt.Sprint("t", t)
		if err := b.apply(wire.CreateTableEntry(h, &s)); err != nil {
			return err
		}
		keys := make([]rowraft.Key, min(partKeys, rows/tables))
		for k := 0; k < rows/tables; k += len(keys) {
			for i := range keys {
				keys[i] = rowraft.Key(k + i)
			}
			if err := b.push(pushEntry(h, s, keys)); err != nil {
				return err
			}
		}
	}
	for _, keys := range batches("uniform", b.rows, 32, true) {
		b.asks = append(b.asks, segment(s, keys, wire.FlagNoValues))
		slices.Sort(keys[:partKeys])
		b.entries = append(b.entries, pushEntry(h, s, keys[:partKeys]))
	}
	return nil
}

// pushUniform pushes the gradients of entry i to other keys: one at random in each of
// partKeys equal ranges. The entries alone hold a fifth of a million rows, and no others
// would ever change.
func (b *benchMachine) pushUniform(i int) error {
	entry := b.entries[i%len(b.entries)]
	keys := entry[len(entry)-partKeys*(8+4*b.dim):] // before their values
	for k := range partKeys {
		from, to := k*b.rows/partKeys, (k+1)*b.rows/partKeys
		binary.LittleEndian.PutUint64(keys[8*k:], uint64(from+b.random.IntN(to-from)))
	}
	return b.push(entry)
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
	return wire.AppendPart(b, &wire.Part{Client: rowraft.ClientID{1}, Incarnation: 1, Op: wire.OpPush,
		Payload: segment(s, keys, 0)})
}

// push gives the only part of entry the next number and applies it.
func (b *benchMachine) push(entry []byte) error {
	b.seq++
	binary.LittleEndian.PutUint64(entry[wire.EntryHeaderSize+24:], b.seq)
	binary.LittleEndian.PutUint64(entry[wire.EntryHeaderSize+32:], b.seq-1)
	return b.apply(entry)
}

func (b *benchMachine) applyNext(entry []byte) error {
	b.index++
	return appliedWhole(b.Apply(b.index, entry))
}

// appliedWhole tells what became of an entry.
func appliedWhole(result any) error {
	switch a := result.(type) {
	case *shard.Applied:
		if p := a.Parts[0]; p.Err != nil || p.Duplicate {
			return fmt.Errorf("a part was not applied: %+v", p)
		}
		return nil
	case error:
		return a
	}
	return fmt.Errorf("an entry was not applied: %v", result)
}

// rates is what one run measured.
type rates struct {
	applied float64 // million rows a second of the applying thread's CPU time
	waits   float64 // how often the thread gave its processor up, per entry of 7,000 rows
	byClock float64 // million rows applied a second of the clock
	pulled  float64 // the same of pulls
}

func (b *benchMachine) run(pullers int, apply bool, d time.Duration) (r rates, err error) {
	var stop atomic.Bool
	var pulls atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, pullers)
	begin := time.Now()
	for p := range pullers {
		wg.Go(func() {
			buf := make([]byte, 1<<20)
			for i := p; !stop.Load(); i++ {
				if _, _, err := b.Pull(b.asks[i%len(b.asks)], false, 0, func(n int) []byte { return buf[:n] }); err != nil {
					errs <- err
					return
				}
				pulls.Add(1)
			}
		})
	}
	if apply {
		entries, cpu, waits := 0, threadTime(), threadWaits()
		for ; time.Since(begin) < d && err == nil; entries++ {
			err = b.pushUniform(entries)
		}
		r.applied = float64(entries*partKeys) / (threadTime() - cpu).Seconds() / 1e6
		r.byClock = float64(entries*partKeys) / time.Since(begin).Seconds() / 1e6
		r.waits = float64(threadWaits()-waits) / float64(entries)
	} else {
		time.Sleep(d)
	}
	r.pulled = float64(pulls.Load()*batchKeys) / time.Since(begin).Seconds() / 1e6
	stop.Store(true)
	wg.Wait()
	select {
	case err = <-errs:
	default:
	}
	return r, err
}
