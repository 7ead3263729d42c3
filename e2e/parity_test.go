package e2e

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/internal/localcluster"
	"github.com/rowraft/rowraft/trainer"
	"github.com/rowraft/rowraft/trainer/copies"
	"github.com/rowraft/rowraft/trainer/data"
	"github.com/rowraft/rowraft/trainer/tableconf"
	"github.com/rowraft/rowraft/trainer/tables"
)

// A run with in_flight 0 on a replicated cluster ends with the same bits in every
// row that it touched as the same run on tables inside the process, for each
// optimizer, and also when the leader of every shard is killed on the way.
func TestParity(t *testing.T) {
	c := start(t, localcluster.Options{})
	for _, tc := range []struct {
		name, optimizer string
		steps           int64
		kill            bool
		onDevice        bool // copies of up to 8 steps on the device
	}{
		{"adagrad", "adagrad", 120, false, false},
		{"adagrad, every leader killed", "adagrad", 120, true, false},
		{"sgd, weights in bfloat16", "sgd", 40, false, false},
		{"adam", "adam", 40, false, false},
		{"adam, every leader killed", "adam", 60, true, false},
		{"rowwise-adagrad, decayed, weights in bfloat16", "rowwise-adagrad", 30, false, false},
		{"ftrl with a schedule", "ftrl", 30, false, false},
		{"copies on the device, every leader killed", "adagrad", 500, true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !tc.kill {
				beforeRelease(t)
			}
			c := &cluster{Cluster: c.Cluster, t: t}
			cfg := smallJob(fmt.Sprintf("parity%d", time.Now().UnixNano()), tc.optimizer, tc.steps)
			if tc.onDevice {
				cfg.Cache = copies.Config{Bytes: "1MiB", On: copies.Device, Staleness: copies.Limit{Steps: 8}}
			}
			decay, l1 := float32(0.01), float32(0.001)
			switch tc.optimizer {
			case "rowwise-adagrad":
				cfg.Embeddings.WeightDecay, cfg.Embeddings.Bound = &decay, &cfg.Embeddings.LR
				fallthrough
			case "sgd":
				cfg.Embeddings.Storage, cfg.Dense.Storage = "bfloat16", "bfloat16"
			case "ftrl":
				cfg.Embeddings.L1 = &l1
				cfg.Embeddings.Schedule = &tableconf.Schedule{Kind: tableconf.Cosine, Warmup: 5, Steps: 20}
			}
			cl := c.dial(client.Options{})
			remote := &recorder{Tables: tables.NewCluster(cl)}
			if tc.kill {
				k := startKiller(c, len(cl.Map().Shards))
				defer k.stop()
				every := int(tc.steps) / (k.shards + 1)
				remote.beforePush = func(n int) {
					if n%every == 0 && n/every <= k.shards {
						k.kill(rowraft.ShardID(n/every - 1))
					}
				}
				train(t, cfg, remote)
				k.stop()
				if k.killed != k.shards {
					t.Fatalf("%d leaders were killed, want those of %d shards", k.killed, k.shards)
				}
			} else {
				train(t, cfg, remote)
			}

			tables, err := tables.NewLocal(len(cl.Map().Shards), rowraft.Float32)
			if err != nil {
				t.Fatal(err)
			}
			local := &recorder{Tables: tables}
			train(t, cfg, local)
			compare(t, remote, local)
			c.sameDigests()
		})
	}
}

// smallJob trains a small DLRM on generated data.
func smallJob(name, optimizer string, steps int64) trainer.Config {
	cfg := trainer.DefaultConfig()
	g := data.DefaultGenerator()
	g.Examples, g.Held, g.Keys, g.Categorical, g.Dense = 0, 200, 400, 4, 3
	no := false
	cfg.Job, cfg.Generator, cfg.Steps, cfg.InFlight, cfg.Batch, cfg.Seed = name, &g, steps, new(0), 64, 7
	cfg.Model = trainer.ModelConfig{Dim: 8, Bottom: []int{16}, Top: []int{16}}
	cfg.Embeddings.Optimizer, cfg.Dense.Optimizer = optimizer, optimizer
	cfg.Audit, cfg.Evaluate, cfg.Device = true, &no, "cpu"
	return cfg
}

func train(t *testing.T, cfg trainer.Config, tables tables.Tables) {
	t.Helper()
	ctx := deadline(t, patience)
	j, err := trainer.NewJob(ctx, cfg, tables, nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := j.Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r.PushesAcknowledged != cfg.Steps || r.BatchesSkipped != 0 {
		t.Fatalf("%d pushes acknowledged, %d batches skipped, want %d and 0", r.PushesAcknowledged, r.BatchesSkipped,
			cfg.Steps)
	}
}

// recorder remembers the tables and the keys that a job has touched.
type recorder struct {
	tables.Tables
	beforePush func(n int) // n counts from 1; may be nil

	mu      sync.Mutex
	pushes  int
	schemas []rowraft.Schema
	keys    map[rowraft.TableID]map[rowraft.Key]bool
}

func (r *recorder) EnsureTable(ctx context.Context, s rowraft.Schema) (rowraft.Schema, error) {
	s, err := r.Tables.EnsureTable(ctx, s)
	if err == nil {
		r.schemas = append(r.schemas, s)
	}
	return s, err
}

func (r *recorder) Pull(ctx context.Context, segs []tables.Segment) error {
	r.note(segs)
	return r.Tables.Pull(ctx, segs)
}

func (r *recorder) Push(ctx context.Context, segs []tables.Segment) error {
	r.note(segs)
	r.pushes++
	if r.beforePush != nil {
		r.beforePush(r.pushes)
	}
	return r.Tables.Push(ctx, segs)
}

func (r *recorder) note(segs []tables.Segment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys == nil {
		r.keys = make(map[rowraft.TableID]map[rowraft.Key]bool)
	}
	for _, s := range segs {
		if r.keys[s.Table] == nil {
			r.keys[s.Table] = make(map[rowraft.Key]bool)
		}
		for _, k := range s.Keys {
			r.keys[s.Table][k] = true
		}
	}
}

// rows pulls every row of a table that was touched.
func (r *recorder) rows(t *testing.T, s rowraft.Schema) ([]rowraft.Key, []float32) {
	t.Helper()
	var keys []rowraft.Key
	for k := range r.keys[s.ID] {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	values := make([]float32, len(keys)*s.Dim)
	err := r.Tables.Pull(deadline(t, patience), []tables.Segment{{Table: s.ID, Dim: s.Dim, Keys: keys, Values: values}})
	if err != nil {
		t.Fatal(err)
	}
	return keys, values
}

func compare(t *testing.T, remote, local *recorder) {
	t.Helper()
	if len(remote.schemas) != 3 {
		t.Fatalf("the job has %d tables, want embeddings, dense and audit", len(remote.schemas))
	}
	for i, s := range remote.schemas {
		keys, got := remote.rows(t, s)
		wantKeys, want := local.rows(t, local.schemas[i])
		// The placement of keys decides which keys are audit rows, one in each shard. It depends on the random table id.
		audit := strings.HasSuffix(s.Name, ".audit")
		if len(keys) != len(wantKeys) || !audit && !slices.Equal(keys, wantKeys) {
			t.Errorf("table %s: %d keys touched on the cluster, %d inside the process", s.Name, len(keys), len(wantKeys))
			continue
		}
		differ, moved := 0, 0
		for i := range got {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				if differ++; differ <= 3 {
					t.Errorf("table %s: key %d, dimension %d: %v on the cluster, %v inside the process", s.Name, keys[i/s.Dim],
						i%s.Dim, got[i], want[i])
				}
			}
			if want[i] != 0 {
				moved++
			}
		}
		if differ > 0 {
			t.Errorf("table %s: %d of %d numbers differ", s.Name, differ, len(got))
		}
		if moved == 0 {
			t.Errorf("table %s: all %d rows are zero: nothing was trained", s.Name, len(keys))
		}
		t.Logf("table %s: %d rows of %d compared", s.Name, len(keys), s.Dim)
	}
}

// killer kills leaders, one after the other, during the training.
type killer struct {
	c       *cluster
	shards  int
	ending  sync.Once
	orders  chan rowraft.ShardID // unbuffered: the training waits until the last victim is back
	done    chan struct{}
	killed  int // read after stop
	failure error
}

func startKiller(c *cluster, shards int) *killer {
	k := &killer{c: c, shards: shards, orders: make(chan rowraft.ShardID), done: make(chan struct{})}
	ctx := deadline(c.t, patience)
	go func() {
		defer close(k.done)
		for shard := range k.orders {
			if k.failure == nil {
				k.failure = k.killLeader(ctx, shard)
			}
		}
	}()
	return k
}

// kill orders the death of the leader of a shard; the push that follows meets it.
func (k *killer) kill(shard rowraft.ShardID) { k.orders <- shard }

func (k *killer) killLeader(ctx context.Context, shard rowraft.ShardID) error {
	leads, err := k.c.leaders(ctx)
	if err != nil {
		return err
	}
	victim := leads[shard]
	if err := victim.Kill(); err != nil {
		return err
	}
	k.killed++
	if err := k.c.Restart(ctx, victim); err != nil {
		return err
	}
	return k.c.caughtUp(ctx, victim)
}

// stop waits for the last victim to be back.
func (k *killer) stop() {
	k.ending.Do(func() { close(k.orders) })
	<-k.done
	if k.failure != nil {
		k.c.t.Error(k.failure)
	}
}
