package e2e

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
)

// BenchmarkDelta makes, verifies and restores a full checkpoint of 1 M rows, and
// deltas to it after 1 % and 10 % of the rows were pushed, with three servers and a
// directory: go test ./e2e -run - -bench Delta -benchtime 1x
func BenchmarkDelta(b *testing.B) {
	const rows, dim = 1_000_000, 16
	c := start(b, localcluster.Options{})
	table, err := c.dial(client.Options{}).CreateTable(deadline(b, patience), rowraft.Schema{
		Name: "emb", Kind: rowraft.Sparse, Dim: dim,
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 3, A: -1, B: 1},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.Adagrad, LR: 0.1, InitialAccumulator: 0.1},
	}, true)
	if err != nil {
		b.Fatal(err)
	}
	push := func(keys []int) {
		const batch = 8192
		grads := make([]float32, batch*dim)
		for i := range grads {
			grads[i] = float32(i%17) - 8
		}
		for from := 0; from < len(keys); from += batch {
			part := make([]rowraft.Key, 0, batch)
			for _, k := range keys[from:min(from+batch, len(keys))] {
				part = append(part, rowraft.Key(k))
			}
			if _, err := table.Push(deadline(b, patience), part, grads[:len(part)*dim]); err != nil {
				b.Fatal(err)
			}
		}
	}
	all := rand.New(rand.NewPCG(1, 2)).Perm(rows)
	push(all)
	dest := b.TempDir()
	c.createCheckpoint(dest, "base")
	for _, tc := range []struct {
		name    string
		touched int
	}{{"full", 0}, {"delta/touched=1%", rows / 100}, {"delta/touched=10%", rows / 10}} {
		b.Run(tc.name, func(b *testing.B) {
			args := []string{"checkpoint", "create", dest}
			if tc.touched > 0 {
				push(all[:tc.touched])
				args = append(args, "--base", "base")
			}
			name, n := "", 0
			took := func(args ...string) time.Duration {
				began := time.Now()
				if _, errout, code := c.rowraft(deadline(b, 5*time.Minute), args...); code != 0 {
					b.Fatalf("%v: exit code %d: %s", args, code, errout)
				}
				return time.Since(began)
			}
			var create, verify, restore time.Duration
			for b.Loop() {
				name = fmt.Sprintf("%s-%d", filepath.Base(tc.name[:4]), time.Now().UnixNano())
				create += took(append(args, "--name", name)...)
				verify += took("checkpoint", "verify", dest+"/"+name)
				restore += took("checkpoint", "restore", dest+"/"+name, "--dry-run", "--replace")
				n++
			}
			m := openChain(b, dest, name).Manifest()
			b.ReportMetric(float64(m.Bytes())/1e6, "MB")
			b.ReportMetric(float64(m.Written()), "rows")
			b.ReportMetric(create.Seconds()/float64(n), "create-s")
			b.ReportMetric(verify.Seconds()/float64(n), "verify-s")
			b.ReportMetric(restore.Seconds()/float64(n), "read-s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
