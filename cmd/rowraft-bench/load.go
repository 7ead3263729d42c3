package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/rowraft/rowraft/internal/cli"
	"github.com/rowraft/rowraft/internal/localcluster"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// print writes the result for a person.
func (r *benchResult) Print(w io.Writer) error {
	pairs := []string{
		"rate", humanize.SIWithDigits(r.RowsPerSecond, 2, "rows/s"),
		"latency", fmt.Sprintf("p50 %.2f ms, p99 %.2f ms, max %.2f ms", r.P50, r.P99, r.Max),
		"calls", fmt.Sprintf("%s of %d rows in %.1f s, %d connections", cli.Count(uint64(r.Calls)), r.Batch, r.Seconds,
			r.Conns),
	}
	if r.ServerCPU != nil {
		pairs = append(pairs, "CPU", fmt.Sprintf("servers %.3f s, client %.3f s per million rows", *r.ServerCPU,
			*r.ClientCPU))
	}
	if r.BytesPerRow != nil {
		pairs = append(pairs, "memory", fmt.Sprintf("%.0f bytes a row on each replica", *r.BytesPerRow))
	}
	return cli.Facts(w, append(pairs, r.facts(", "+r.DType+" on the wire")...)...)
}

// bytesPerRow asks one server of its own how much memory the tables take there.
func bytesPerRow(ctx context.Context, c *localcluster.Cluster, w *benchWorker) (*float64, error) {
	if c == nil {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	st, err := localcluster.AwaitStatus(ctx, c.Servers()[0].Addr)
	if err != nil {
		return nil, err
	}
	ids := map[uint64]bool{}
	for _, t := range w.tables {
		ids[uint64(t.Schema().ID)] = true
	}
	var sum rowraftv1.TableStats
	for _, r := range st.Replicas {
		for _, t := range r.Tables {
			if ids[t.Table] {
				sum.Rows += t.Rows
				sum.MemoryBytes += t.MemoryBytes
			}
		}
	}
	if sum.Rows == 0 {
		return nil, nil
	}
	per := float64(sum.MemoryBytes) / float64(sum.Rows)
	return &per, nil
}
