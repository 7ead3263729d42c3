package raftstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/raftstore/raftlog"
	"github.com/rowraft/rowraft/raftstore/timers"
)

// sinkMachine applies nothing: the benchmark measures the log and the network.
type sinkMachine struct{ index atomic.Uint64 }

func (m *sinkMachine) Apply(i rowraft.Index, _ []byte) any { m.index.Store(uint64(i)); return nil }
func (m *sinkMachine) AppliedIndex() rowraft.Index         { return rowraft.Index(m.index.Load()) }
func (m *sinkMachine) Restore(io.Reader) error             { return errors.New("not in this benchmark") }
func (m *sinkMachine) Snapshot() (Snapshot, error)         { return sinkSnapshot{}, nil }

type sinkSnapshot struct{}

func (sinkSnapshot) WriteTo(io.Writer) (int64, error) { return 0, nil }
func (sinkSnapshot) Release()                         {}

// BenchmarkPropose: three nodes in one process on one disk, loopback, fsync on.
func BenchmarkPropose(b *testing.B) {
	for _, backend := range raftlog.Backends {
		for _, tc := range []struct {
			kib, proposers int
		}{{4, 16}, {64, 16}, {576, 1}, {576, 4}} {
			b.Run(fmt.Sprintf("log=%s/entryKiB=%d/proposers=%d", backend, tc.kib, tc.proposers), func(b *testing.B) {
				c := newTestCluster(b, 3, func(o *Options) {
					o.Backend = backend
					o.Profile = timers.Dense
					o.SegmentSizeBytes = 64 << 20
					o.SnapshotEveryBytes = 512 << 20
					o.Logger = slog.New(slog.DiscardHandler)
				})
				c.conf = func(g *GroupConfig) { g.Machine = &sinkMachine{} }
				for _, n := range c.nodes {
					c.start(n)
				}
				g := c.leader().group
				entry := make([]byte, tc.kib<<10)
				b.SetBytes(int64(len(entry)))
				var left atomic.Int64
				left.Store(int64(b.N))
				var wg sync.WaitGroup
				b.ResetTimer()
				for range tc.proposers {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if _, _, err := g.Propose(entry).Wait(context.Background()); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				s := g.Status()
				b.ReportMetric(float64(b.N)/float64(max(1, s.LogWrites)), "entries/write")
			})
		}
	}
}
