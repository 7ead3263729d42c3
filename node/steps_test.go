package node

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/testutil"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

var testJob = rowraft.JobID{7, 1, 2, 3, 15: 9}

// everyShard calls call for each shard, on one server after the other until one leads the shard.
func (c *testCluster) everyShard(ctx context.Context, call func(rowraftv1.ReplicasClient, uint32) error) {
	c.t.Helper()
	var admins []rowraftv1.ReplicasClient
	for i := range c.nodes {
		admins = append(admins, c.admin(i))
	}
	for shard := range c.nodes[0].cfg.Shards {
		var err error
		testutil.Eventually(c.t, "a shard's leader answers", func() bool {
			for _, a := range admins {
				err = call(a, uint32(shard))
				if err == nil || !rowraft.CodeOf(err).Retryable() {
					return true
				}
			}
			return false
		})
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// ensureJob sets a membership in all shards. Rank r has incarnation incs[r]; 0 means no member.
func (c *testCluster) ensureJob(ctx context.Context, req *rowraftv1.EnsureJobRequest, incs ...uint64) {
	c.t.Helper()
	req.Job, req.Members = testJob[:], nil
	for r, inc := range incs {
		if inc > 0 {
			req.Members = append(req.Members, &rowraftv1.JobMember{Rank: uint32(r), Incarnation: inc})
		}
	}
	c.everyShard(ctx, func(a rowraftv1.ReplicasClient, shard uint32) error {
		req.Shard = shard
		_, err := a.EnsureJob(ctx, req)
		return err
	})
}

// worker returns a rank of testJob with its own client.
func (c *testCluster) worker(generation rowraft.Generation, rank rowraft.Rank,
	inc rowraft.Incarnation) (*client.Client, *client.Job) {
	c.t.Helper()
	cl := c.dial()
	j, err := cl.Job(client.JobOptions{ID: testJob, Generation: generation, Rank: rank, Incarnation: inc})
	if err != nil {
		c.t.Fatal(err)
	}
	return cl, j
}

// stepGradients returns the gradients of one worker in one step: random keys of a few hundred, and numbers
// whose sum depends on the order of addition.
func stepGradients(rank rowraft.Rank, step rowraft.Step) ([]rowraft.Key, []float32) {
	rng := rand.New(rand.NewPCG(uint64(rank), uint64(step)))
	seen := map[rowraft.Key]bool{}
	for range 200 {
		seen[rowraft.Key(rng.Uint64N(400))] = true
	}
	var keys []rowraft.Key
	for k := range seen {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	values := make([]float32, 4*len(keys))
	for i := range values {
		values[i] = float32(rng.NormFloat64()) * float32(uint64(1)<<rng.UintN(20))
	}
	return keys, values
}

// train runs steps from…to with concurrent workers. Worker 0 calls between before each step.
func (c *testCluster) train(ctx context.Context, table string, workers int, from, to rowraft.Step,
	between func(rowraft.Step)) {
	c.t.Helper()
	var wg sync.WaitGroup
	for r := range workers {
		cl, job := c.worker(1, rowraft.Rank(r), 1)
		wg.Go(func() {
			t, err := cl.Table(ctx, table)
			if err != nil {
				c.t.Error(err)
				return
			}
			for step := from; step <= to; step++ {
				if r == 0 && between != nil {
					between(step)
				}
				keys, values := stepGradients(rowraft.Rank(r), step)
				result, err := job.PushStep(ctx, step, nil, client.Segment{Table: t, Keys: keys, Values: values})
				if err != nil || len(result.Late) > 0 || len(result.Unsure) > 0 || result.Next != step+1 {
					c.t.Errorf("worker %d, step %d: %+v, %v", r, step, result, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// expected returns the rows of a table of SGD with rate 1 after the steps: the gradients of the workers
// summed in rank order, divided by their number.
func expected(workers int, to rowraft.Step, dim int,
	gradients func(rowraft.Rank, rowraft.Step) ([]rowraft.Key, []float32)) map[rowraft.Key][]float32 {
	rows := map[rowraft.Key][]float32{}
	for step := rowraft.Step(1); step <= to; step++ {
		sums := map[rowraft.Key][]float32{}
		for r := range workers {
			keys, values := gradients(rowraft.Rank(r), step)
			for i, k := range keys {
				if sums[k] == nil {
					sums[k] = slices.Clone(values[i*dim : (i+1)*dim])
					continue
				}
				for d := range dim {
					sums[k][d] += values[i*dim+d]
				}
			}
		}
		for k, sum := range sums {
			if rows[k] == nil {
				rows[k] = make([]float32, dim)
			}
			for d, v := range sum {
				rows[k][d] -= v / float32(workers)
			}
		}
	}
	return rows
}

// wantRows compares a table with the expected rows, bit by bit.
func (c *testCluster) wantRows(ctx context.Context, table string, want map[rowraft.Key][]float32) {
	c.t.Helper()
	t, err := c.dial().Table(ctx, table)
	if err != nil {
		c.t.Fatal(err)
	}
	var keys []rowraft.Key
	for k := range want {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	dim := t.Schema().Dim
	got := make([]float32, len(keys)*dim)
	if err := t.Pull(ctx, keys, got); err != nil {
		c.t.Fatal(err)
	}
	wrong := 0
	for i, k := range keys {
		if have := got[i*dim : (i+1)*dim]; !slices.Equal(have, want[k]) {
			if wrong++; wrong < 4 {
				c.t.Errorf("key %d is %v, want %v", k, have[:min(4, dim)], want[k][:min(4, dim)])
			}
		}
	}
}

// Steps are averaged in rank order, to the bit. A leader that is killed in the middle changes nothing.
func TestStepsAreAveragedInRankOrder(t *testing.T) {
	c := startCluster(t, 3, 2)
	ctx := testutil.Context(t)
	if _, err := c.dial().CreateTable(ctx, counterSchema("emb"), false); err != nil {
		t.Fatal(err)
	}
	c.ensureJob(ctx, &rowraftv1.EnsureJobRequest{Generation: 1, FirstStep: 1}, 1, 1, 1)
	c.train(ctx, "emb", 3, 1, 30, func(step rowraft.Step) {
		if step == 10 || step == 20 {
			c.stopNode(int(step/10 - 1))
		}
		if step == 15 || step == 25 {
			c.restart(int(step/10 - 1))
		}
	})
	c.wantRows(ctx, "emb", expected(3, 30, 4, stepGradients))
	c.sameDigests(ctx, 0)
	c.sameDigests(ctx, 1)
}

// For any number of workers, a step takes as much log as the union of its keys.
func TestLogBytesOfAStep(t *testing.T) {
	const rows = 4000 // each worker has half of them
	c := startStepCluster(t)
	for i, workers := range []int{1, 4, 16} {
		incs := make([]uint64, workers)
		for r := range incs {
			incs[r] = 1
		}
		c.ensureJob(c.ctx, &rowraftv1.EnsureJobRequest{Generation: uint64(i + 1), FirstStep: uint64(i + 1)}, incs...)
		union := map[rowraft.Key]bool{}
		var wg sync.WaitGroup
		for r := range workers {
			cl, job := c.worker(rowraft.Generation(i+1), rowraft.Rank(r), 1)
			table, err := cl.Table(c.ctx, "emb")
			if err != nil {
				t.Fatal(err)
			}
			var keys []rowraft.Key
			rng := rand.New(rand.NewPCG(uint64(r), uint64(i)))
			for k := range rowraft.Key(rows) {
				if rng.Uint64()%2 == 0 {
					keys, union[k] = append(keys, k), true
				}
			}
			wg.Go(func() {
				result, err := job.PushStep(c.ctx, rowraft.Step(i+1), nil,
					client.Segment{Table: table, Keys: keys, Values: make([]float32, 4*len(keys))})
				if err != nil || len(result.Late) > 0 {
					t.Errorf("worker %d: %+v, %v", r, result, err)
				}
			})
		}
		wg.Wait()
		logged := 0
		c.mu.Lock()
		for _, n := range c.steps {
			logged += n
		}
		c.steps = nil
		c.mu.Unlock()
		ratio := float64(logged) / float64(len(union)*(8+4*4))
		t.Logf("%d workers: %d bytes of log for %d keys, %.4f × the union", workers, logged, len(union), ratio)
		if ratio < 1 || ratio > 1.1 {
			t.Errorf("%d workers: the log of a step has %.3f × the bytes of the union of its keys, want at most 1.1", workers,
				ratio)
		}
	}
}
