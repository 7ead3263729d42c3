package raftlog

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
)

func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Sec+u.Stime.Sec) + float64(u.Utime.Usec+u.Stime.Usec)/1e6
}

// BenchmarkAppend appends entries from several groups at the same time. Each group cuts its log every 64 MiB.
func BenchmarkAppend(b *testing.B) {
	for _, groups := range []int{1, 4, 16, 64} {
		for _, kib := range []int{8, 64, 512} {
			b.Run(fmt.Sprintf("groups=%d/kib=%d", groups, kib), func(b *testing.B) {
				logs, syncs := benchLogs(b, groups)
				data := make([]byte, kib<<10)
				for i := range data {
					data[i] = byte(i * 7)
				}
				seal := sealedEntry(b, 1, 1, data).Extensions
				b.SetBytes(int64(len(data)))
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ResetTimer()
				begin, before := cpuSeconds(), syncs()
				var wg sync.WaitGroup
				for _, l := range logs {
					wg.Go(func() {
						for i := uint64(1); left.Add(-1) >= 0; i++ {
							e := &raft.Log{Index: i, Term: 1, Data: data, Extensions: seal}
							if err := l.StoreLogs([]*raft.Log{e}); err != nil {
								b.Error(err)
								return
							}
							if every := uint64(64 << 10 / kib); i%every == 0 {
								if err := l.DeleteRange(1, i); err != nil {
									b.Error(err)
								}
								if err := l.Reclaim(); err != nil {
									b.Error(err)
								}
							}
						}
					})
				}
				wg.Wait()
				b.StopTimer()
				gib := float64(b.N) * float64(len(data)) / (1 << 30)
				b.ReportMetric((cpuSeconds()-begin)/gib, "cpu-s/GiB")
				b.ReportMetric(float64(syncs()-before)/float64(b.N), "syncs/entry")
			})
		}
	}
}

// benchLogs opens the logs of groups in one shared log, and returns a function that returns the number of syncs.
func benchLogs(b *testing.B, groups int) (logs []Log, syncs func() uint64) {
	dir := b.TempDir()
	shared, err := OpenShared(vfs.OS, filepath.Join(dir, "log"), testOwner.Cluster, testOwner.Node, 64<<20,
		slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { shared.Close() })
	for i := range groups {
		group := filepath.Join(dir, fmt.Sprint(i))
		if err := vfs.MkdirAll(vfs.OS, group); err != nil {
			b.Fatal(err)
		}
		owner := testOwner
		owner.Group = fmt.Sprint("shard-", i)
		l, err := Open(vfs.OS, Row, group, owner, shared, slog.New(slog.DiscardHandler))
		if err != nil {
			b.Fatal(err)
		}
		logs = append(logs, l)
	}
	return logs, func() uint64 { return shared.writer.batch }
}
