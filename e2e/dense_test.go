package e2e

import (
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer/tables"
	"github.com/rowraft/rowraft/trainer/tensor"
)

// Dense tensors on real servers: one of 2^34 values, 64 GiB, of which a few rows are
// touched, and first weights that one of two takers writes.
func TestDenseTensors(t *testing.T) {
	needBinaries(t)
	c := start(t, localcluster.Options{})
	ctx := deadline(t, patience)
	dial := func() *client.Client {
		cl, err := client.Dial(ctx, client.Options{Endpoints: c.Endpoints()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cl.Close() })
		return cl
	}
	a, b := dial(), dial()
	table, err := a.CreateTable(ctx, rowraft.Schema{
		Name: "huge", Kind: rowraft.Dense, Dim: 2, Optimizer: rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
		Initializer: rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 5, A: -1, B: 1},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	other, err := b.Table(ctx, "huge")
	if err != nil {
		t.Fatal(err)
	}
	x, err := tensor.New("w", 3, 2, 1<<17, 1<<17)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("a tensor of 64 GiB", func(t *testing.T) {
		ctx := deadline(t, patience)
		rows, seen := tables.TensorRows(a, table), tables.TensorRows(b, other)
		for _, at := range []int64{0, 1 << 31, 1<<33 + 2, x.Size() - 2} {
			fresh, moved := make([]float32, 2), make([]float32, 2)
			if err := x.Read(ctx, seen, at, fresh); err != nil {
				t.Fatal(err)
			}
			if fresh[0] == 0 || math.Abs(float64(fresh[0])) >= 1 {
				t.Errorf("value %d begins as %v, want the server's initializer", at, fresh[0])
			}
			if err := x.Push(ctx, rows, at, []float32{-10, float32(at)}); err != nil {
				t.Fatal(err)
			}
			if err := x.Read(ctx, seen, at, moved); err != nil {
				t.Fatal(err)
			}
			if want := []float32{fresh[0] + 10, fresh[1] - float32(at)}; !slices.Equal(moved, want) {
				t.Errorf("values from %d are %v after a push, want %v", at, moved, want)
			}
		}
		present := make([]bool, 3)
		keys := []rowraft.Key{x.Key(0), x.Key(1), x.Key(x.Rows() - 1)}
		if err := seen.Pull(ctx, keys, make([]float32, 6), present); err != nil || !slices.Equal(present, []bool{true, false, true}) {
			t.Errorf("present are %v, %v, want the first and the last", present, err)
		}
	})
	t.Run("whoever takes over is the only one who assigns", func(t *testing.T) {
		ctx := deadline(t, patience)
		small, err := tensor.New("b", 4, 2, 700)
		if err != nil {
			t.Fatal(err)
		}
		var claims []tables.Assigner
		for _, tb := range []*tables.Cluster{tables.NewCluster(a), tables.NewCluster(b)} {
			if _, err := tb.EnsureTable(ctx, table.Schema()); err != nil {
				t.Fatal(err)
			}
			claim, err := tb.Claim(ctx, "x")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { claim.Close() })
			claims = append(claims, claim)
		}
		assign := func(by int) error {
			s := tables.Segment{Table: table.Schema().ID, Dim: 2, Keys: small.AppendKeys(nil, 0, small.Rows()), Values: make([]float32, 700)}
			for i := range s.Values {
				s.Values[i] = float32(by)
			}
			return claims[by].Assign(ctx, []tables.Segment{s})
		}
		var all sync.WaitGroup
		errs := make([]error, 2)
		for by := range claims {
			all.Go(func() { errs[by] = assign(by) })
		}
		all.Wait()
		if rowraft.CodeOf(errs[0]) != rowraft.CodeSessionExpired || errs[1] != nil {
			t.Fatalf("the first claimer: %v, want SessionExpired; the second: %v", errs[0], errs[1])
		}
		got := make([]float32, 700)
		if err := small.Read(ctx, tables.TensorRows(a, table), 0, got); err != nil {
			t.Fatal(err)
		}
		if done, err := small.Complete(ctx, tables.TensorRows(a, table)); err != nil || !done || slices.Min(got) != 1 {
			t.Errorf("complete %v, %v; values from %v to %v, want those of the second claimer", done, err, slices.Min(got), slices.Max(got))
		}
	})
	c.sameDigests()
}
