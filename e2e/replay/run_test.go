package replay

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/load"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/raftstore/timers"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// spoiler is between a log and a Machine and may change the entries.
type spoiler func(index rowraft.Index, entry []byte) []byte

// machine adapts a shard.Machine to raftstore.
type machine struct {
	*shard.Machine
	spoil spoiler
}

func (m machine) Apply(index rowraft.Index, entry []byte) any {
	if m.spoil != nil {
		entry = m.spoil(index, entry)
	}
	return m.Machine.Apply(index, entry)
}

func (m machine) Snapshot() (raftstore.Snapshot, error) {
	s, err := m.Machine.Snapshot()
	if err != nil {
		return nil, err // never a nil *shard.Snapshot in an interface
	}
	return s, nil
}

// run is three stores with one shard, and the records of their past.
type run struct {
	t       *testing.T
	dir     string
	stores  []*raftstore.Store
	groups  []*raftstore.Group
	shards  []*shard.Machine
	addrs   []string
	ops     []history.Op
	digests []check.DigestAt
	seqs    map[int]rowraft.Seq // by client
}

var counterTable = rowraft.Schema{
	ID: 10, Name: load.TableName, Kind: rowraft.Sparse, Dim: 2,
	Initializer: rowraft.Initializer{Kind: rowraft.InitZeros}, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
}

// patience is how long one step may take on a machine whose processes stop for seconds.
const patience = 4 * time.Minute

func nodeName(i int) string { return fmt.Sprintf("n%d", i) }

// start starts three servers. spoil may be nil.
func start(t *testing.T, backend string, spoil func(server int) spoiler) *run {
	r := &run{t: t, dir: t.TempDir(), seqs: map[int]rowraft.Seq{}}
	var listeners []net.Listener
	var members []raftstore.Member
	for i := range 3 {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners = append(listeners, ln)
		r.addrs = append(r.addrs, ln.Addr().String())
		members = append(members, raftstore.Member{Replica: rowraft.ReplicaID("replica-" + nodeName(i)),
			Node: rowraft.NodeID(nodeName(i))})
	}
	t.Cleanup(r.stop)
	for i, ln := range listeners {
		m, err := shard.New(shard.Config{})
		if err != nil {
			t.Fatal(err)
		}
		r.shards = append(r.shards, m)
		s, err := raftstore.Open(raftstore.Options{
			Dir: filepath.Join(r.dir, nodeName(i), "raft"), Cluster: "c", Node: members[i].Node, Listener: ln, Backend: backend,
			Profile: timers.Dense, SegmentSizeBytes: 1 << 20, DiskStallLimit: 2 * patience, DiskReserveBytes: -1,
			SnapshotEveryBytes: 8 << 10, TrailingLogBytes: 64 << 10,
			Logger: slog.New(slog.DiscardHandler),
			Fatal:  func(err error) { t.Errorf("server %d: %v", i, err) },
			Resolve: func(n rowraft.NodeID) (string, error) {
				for j, m := range members {
					if m.Node == n {
						return r.addrs[j], nil
					}
				}
				return "", fmt.Errorf("unknown node %s", n)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		r.stores = append(r.stores, s)
		own := machine{Machine: m}
		if spoil != nil {
			own.spoil = spoil(i)
		}
		g, err := s.StartGroup(raftstore.GroupConfig{ID: "shard-0",
			Replica: members[i].Replica, Machine: own, Bootstrap: members})
		if err != nil {
			t.Fatal(err)
		}
		r.groups = append(r.groups, g)
	}
	return r
}

func (r *run) stop() {
	for _, s := range r.stores {
		if err := s.Close(); err != nil {
			r.t.Error(err)
		}
	}
	for _, m := range r.shards {
		m.Close()
	}
	r.stores, r.shards = nil, nil
}

// propose logs an entry with the help of the leader, and repeats it if its outcome is unknown: its sequence
// numbers make that harmless.
func (r *run) propose(entry []byte) rowraft.Index {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		for _, g := range r.groups {
			if _, index, err := g.Propose(entry).Wait(ctx); err == nil {
				return index
			}
		}
		select { // there is no leader yet
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	r.t.Fatal("no leader was elected")
	return 0
}

var entryHeader = wire.EntryHeader{Version: wire.FirstVersion, Epoch: 1, LogTime: 5}

// push adds 1 to the client's dimension of row 0 and pushes to the Adagrad table.
func (r *run) push(client int) rowraft.Index {
	r.seqs[client]++
	counts := make([]float32, 2)
	counts[client] = -1
	g := make([]float32, adagradTable.Dim)
	for i := range g {
		g[i] = 0.37 * float32(i+int(r.seqs[client]))
	}
	part := wire.Part{
		Client: rowraft.ClientID{byte(client + 1)}, Incarnation: 1, Seq: r.seqs[client], Op: wire.OpPush,
		Payload: append(segment(&counterTable, load.Keys(counterTable.ID, clustermap.EvenSlots(1, rowraft.DefaultSlots), 1,
			1)[0], counts),
			segment(&adagradTable, 9, g)...),
	}
	index := r.propose(partsEntry(part))
	r.ops = append(r.ops, history.Op{Kind: history.Push, Client: client, Rows: []int{0}, Outcome: history.OK,
		Index: map[int]uint64{0: uint64(index)}})
	return index
}

func partsEntry(parts ...wire.Part) []byte {
	h := entryHeader
	h.Kind, h.Parts = wire.EntryParts, len(parts)
	b := make([]byte, wire.EntryHeaderSize)
	wire.PutEntryHeader(b, h)
	for i := range parts {
		b = wire.AppendPart(b, &parts[i])
	}
	return b
}

// spent returns an entry that only uses a number of client.
func spent(client int, seq rowraft.Seq) []byte {
	return partsEntry(wire.Part{Client: rowraft.ClientID{byte(client + 1)}, Incarnation: 1, Seq: seq, Op: wire.OpPush})
}

// isPush reports whether an entry is the push of client with the given number, wherever it is in the log: a
// change of leaders moves it, and may log it twice.
func isPush(entry []byte, client int, seq rowraft.Seq) bool {
	h, rest, err := wire.ParseEntryHeader(entry)
	if err != nil || h.Kind != wire.EntryParts || h.Parts != 1 {
		return false
	}
	var p wire.Part
	_, err = wire.ParsePart(rest, &p)
	return err == nil && p.Client == rowraft.ClientID{byte(client + 1)} && p.Seq == seq
}

var adagradTable = rowraft.Schema{
	ID: 20, Name: "adagrad", Kind: rowraft.Sparse, Dim: 16,
	Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 7, A: -1, B: 1},
	Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1, Epsilon: 1e-8},
}

func segment(s *rowraft.Schema, key rowraft.Key, values []float32) []byte {
	seg := wire.Segment{Table: s.ID, N: 1, Dim: s.Dim, DType: rowraft.Float32}
	b := make([]byte, seg.Size())
	body := seg.Put(b)
	for i := range 8 {
		body.Keys[i] = byte(key >> (8 * i))
	}
	wire.PutFloats(body.Values, rowraft.Float32, values)
	return b
}

// fill logs tables, sessions and pushes until every server has a snapshot, then some more. It records
// digests in between, and stops the servers. It returns the last index.
func (r *run) fill() rowraft.Index { return r.fillBeyond(0) }

// fillBeyond is fill with a log that extends beyond index.
func (r *run) fillBeyond(index rowraft.Index) rowraft.Index {
	r.t.Helper()
	r.propose(wire.CreateTableEntry(entryHeader, &counterTable))
	r.propose(wire.CreateTableEntry(entryHeader, &adagradTable))
	for c := range byte(2) {
		r.propose(wire.OpenSessionEntry(entryHeader, wire.Opening{Client: rowraft.ClientID{c + 1}, Incarnation: 1}))
	}
	r.seqs[1]++
	r.propose(spent(1, r.seqs[1]))
	for n := range 60 {
		if index := r.push(n % 2); n%10 == 9 {
			r.note(index)
		}
	}
	r.awaitSnapshots()
	for n := range 6 {
		r.push(n % 2)
	}
	last := r.push(0)
	for last <= index {
		last = r.push(0)
	}
	r.note(last)
	r.stop()
	return last
}

// note records the digest of every replica at index.
func (r *run) note(index rowraft.Index) {
	r.t.Helper()
	var wg sync.WaitGroup
	for i, g := range r.groups {
		wg.Go(func() {
			if err := g.WaitApplied(r.t.Context(), index); err != nil {
				r.t.Error(err)
			}
		})
		wg.Wait()
		d, err := r.shards[i].Digest()
		if err != nil {
			r.t.Fatal(err)
		}
		r.digests = append(r.digests,
			check.DigestAt{Replica: nodeName(i), Index: uint64(d.Index), Digest: hex.EncodeToString(d.Sum[:])})
	}
}

// awaitSnapshots waits until each server has a snapshot.
func (r *run) awaitSnapshots() {
	r.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for i := range 3 {
		for {
			if metas, err := filepath.Glob(filepath.Join(r.dir, nodeName(i), "raft", "groups", "shard-0", "snapshots", "*",
				"meta")); err == nil && len(metas) > 0 && filepath.Ext(filepath.Dir(metas[0])) != ".tmp" {
				break
			}
			select {
			case <-tick.C:
			case <-deadline:
				r.t.Fatalf("server %d takes no snapshot", i)
			}
		}
	}
}

func (r *run) options() Options {
	o := Options{Shards: 1, Digests: r.digests, Ops: r.ops}
	for i := range 3 {
		o.Servers = append(o.Servers, Server{nodeName(i), vfs.OS, filepath.Join(r.dir, nodeName(i))})
	}
	return o
}
