package rowstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cmd/rowraft-bench/figures"
	"github.com/rowraft/rowraft/raftstore"
	"github.com/rowraft/rowraft/shard"
)

const ackedInFlight = 8 // entries that are proposed and not yet applied

// acked measures what a snapshot costs pushes that are acknowledged: through the log of
// a shard with one replica, synced, with the snapshot store on the same disk.
// There a snapshot waits for the log while it can.
func acked(c config, report func(figures.Figure)) error {
	// Entries are on the Go heap, each a new one.
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	for _, dim := range []int{16, 64} {
		if err := ackedBeside(dim, c.rounds, report); err != nil {
			return fmt.Errorf("dim %d: %w", dim, err)
		}
	}
	return nil
}

// ackedMachine notes the images of the snapshots that are taken.
type ackedMachine struct {
	*shard.Machine
	images float64 // of the last one, over the state
}

func (m *ackedMachine) Apply(i rowraft.Index, entry []byte) any {
	out := m.Machine.Apply(i, entry)
	if fatal, ok := out.(*shard.FatalError); ok {
		return &raftstore.FatalError{Err: fatal}
	}
	return out
}

func (m *ackedMachine) Snapshot() (raftstore.Snapshot, error) {
	s, err := m.Machine.Snapshot()
	if err != nil {
		return nil, err
	}
	return &ackedSnapshot{s, m}, nil
}

type ackedSnapshot struct {
	*shard.Snapshot
	m *ackedMachine
}

func (s *ackedSnapshot) Release() {
	s.m.images = float64(s.ImageBytes()) / float64(s.Bytes())
	s.Snapshot.Release()
}

// group is a Raft group with one replica of a benchMachine in dir.
type group struct {
	bench   *benchMachine
	machine *ackedMachine
	store   *raftstore.Store
	raft    *raftstore.Group
	pending []*raftstore.Future // oldest first
}

func openGroup(dir string) (*group, error) {
	m, err := shard.New(shard.Config{})
	if err != nil {
		return nil, err
	}
	g := &group{machine: &ackedMachine{Machine: m}, bench: &benchMachine{Machine: m}}
	g.bench.apply = g.propose
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	g.store, err = raftstore.Open(raftstore.Options{
		Dir: dir, Cluster: "bench", Node: "n", Listener: l,
		Resolve:          func(rowraft.NodeID) (string, error) { return l.Addr().String(), nil },
		SegmentSizeBytes: 64 << 20, SnapshotEveryBytes: 512 << 30, DiskStallLimit: time.Minute,
		Fatal: func(err error) { panic(err) }, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, errors.Join(err, l.Close(), m.Close())
	}
	leads := make(chan struct{})
	var once sync.Once
	g.raft, err = g.store.StartGroup(raftstore.GroupConfig{
		ID: "shard-1", Replica: "r", Machine: g.machine, Bootstrap: []raftstore.Member{{Replica: "r", Node: "n"}},
		OnLeader: func(_ rowraft.Term, leader bool) {
			if leader {
				once.Do(func() { close(leads) })
			}
		},
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	<-leads
	return g, nil
}

func (g *group) Close() error { return errors.Join(g.store.Close(), g.machine.Close()) }

// propose proposes a copy of entry, and waits for the oldest if enough are under way.
func (g *group) propose(entry []byte) error {
	g.pending = append(g.pending, g.raft.Propose(bytes.Clone(entry)))
	return g.await(ackedInFlight)
}

// await waits until at most n are under way.
func (g *group) await(n int) error {
	for ; len(g.pending) > n; g.pending = g.pending[1:] {
		result, _, err := g.pending[0].Wait(context.Background())
		if err == nil {
			err = appliedWhole(result)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// run pushes until done is closed, or for so long if it is nil, and returns the rate.
func (g *group) run(done <-chan struct{}, d time.Duration) (rows float64, took time.Duration, err error) {
	begin := time.Now()
	for i := 0; ; i++ {
		took = time.Since(begin)
		select {
		case <-done:
			return float64(i*partKeys) / took.Seconds() / 1e6, took, g.await(0)
		default:
		}
		if done == nil && took > d {
			return float64(i*partKeys) / took.Seconds() / 1e6, took, g.await(0)
		}
		if err := g.bench.pushUniform(i); err != nil {
			return 0, took, err
		}
	}
}

func ackedBeside(dim, rounds int, report func(figures.Figure)) (err error) {
	dir, err := os.MkdirTemp("", "rowraft-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := openGroup(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	if err := g.bench.fill(dim, machineRows, 1); err != nil {
		return err
	}
	var ratios, rates, images, seconds []float64
	took := time.Second
	for range rounds {
		before, _, err := g.run(nil, took)
		if err != nil {
			return err
		}
		during, t, err := g.during()
		if err != nil {
			return err
		}
		after, _, err := g.run(nil, t)
		if err != nil {
			return err
		}
		took = t
		alone := (before + after) / 2
		ratios, rates = append(ratios, during/alone), append(rates, alone)
		images, seconds = append(images, g.machine.images), append(seconds, t.Seconds())
	}
	name := func(what string) string { return fmt.Sprintf("acked/%s/dim=%d", what, dim) }
	report(figures.AtLeast(name("pushes"), median(ratios), "×", pushesBar))
	report(figures.AtMost(name("images"), median(images), "×", imagesBar))
	report(figures.Free(name("pushes-alone"), median(rates), "Mrows/s"))
	report(figures.Free(name("write"), median(seconds), "s"))
	for _, share := range pacedShares {
		if err := g.pacedBeside(fmt.Sprintf("paced-%.2f", share), share*median(rates), rounds, report); err != nil {
			return err
		}
	}
	return nil
}

// during runs for as long as a snapshot takes.
func (g *group) during() (rows float64, took time.Duration, err error) {
	done := make(chan struct{})
	result := make(chan error, 1)
	go func() {
		result <- g.raft.Snapshot()
		close(done)
	}()
	rows, took, err = g.run(done, 0)
	return rows, took, errors.Join(err, <-result)
}
