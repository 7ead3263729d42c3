package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/checkpoint/depot"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/node"
	"github.com/rowraft/rowraft/wire"
)

// jobOf returns the text of a small job with in_flight 0, of 12 steps if more has no number.
func jobOf(name, more string) string {
	if !strings.Contains(more, "steps: ") {
		more += "steps: 12\n"
	}
	return "job: " + name + "\nbatch: 64\nin_flight: 0\nevaluate: false\ndevice: cpu\nseed: 7\n" +
		"generator: {examples: 2000, held: 10, keys: 200, categorical: 3, dense: 2}\n" +
		"model: {dim: 4, bottom: [8], top: [8]}\n" + more
}

// TestEqualSeedsGiveEqualBits: a job with in_flight 0 ends with equal weights and optimizer state in every row on two
// new clusters with different numbers of shards. With one trainer it does so in any mode, and --local gives the same
// bits. With two trainers it does so in mode sync. A cache without staleness changes no bit, and copies that are older
// change the same bits in each run. Row versions and digests differ, because table ids are random.
func TestEqualSeedsGiveEqualBits(t *testing.T) {
	servers := []string{serve(t, 2), serve(t, 3)}
	for _, job := range []struct {
		name, more string
		trainers   int
	}{
		{"defaults", "", 1},
		{"cached", "cache: {bytes: 1MiB}\n", 1},
		{"stale", "steps: 150\nepochs: 9\ncache: {bytes: 1MiB, staleness: {steps: 8}}\n", 1},
		{"bits", "dtype: bfloat16\nmode: sync\nparameters: [{name: \"*\", init: server}]\n" +
			"embeddings: {optimizer: adam, storage: bfloat16}\ndense: {optimizer: momentum, lr: 0.01}\n", 1},
		{"two", "mode: sync\ntrainers: 2\n", 2},
	} {
		config := file(t, job.name+".yaml", jobOf(job.name, job.more))
		var want tableRows
		what := "with --local"
		if job.trainers == 1 && job.name != "stale" { // --local has no copies
			want = trainLocal(t, config)
		}
		for i, addr := range servers {
			dest := t.TempDir()
			var all sync.WaitGroup
			for rank := range job.trainers {
				all.Go(func() {
					train(t, new(options), "--config", config, "--endpoints", addr, "--insecure", "--rank", fmt.Sprint(rank),
						"--checkpoint-at-end", dest)
				})
			}
			all.Wait()
			got := saved(t, dest, job.name)
			if want == nil {
				want, what = got, "on cluster 0"
			}
			if job.name == "stale" && reflect.DeepEqual(got, trainLocal(t, config)) {
				t.Error("copies change no bit: none was older than its batch")
			}
			differences(t, fmt.Sprintf("job %s on cluster %d", job.name, i), got, want, what)
		}
		rows := 0
		for _, of := range want {
			rows += len(of)
		}
		if rows < 400 {
			t.Errorf("job %s has %d rows, want at least 400", job.name, rows)
		}
	}
}

// tableRows holds the weights, as they are stored, and then the optimizer state of each key of each table.
type tableRows map[string]map[rowraft.Key]string

// train runs the command train with these flags.
func train(t *testing.T, o *options, args ...string) {
	t.Helper()
	cmd := newJobCommandOf(o)
	cmd.SetArgs(append(args, "--progress", "none"))
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Errorf("train %v: %v", args, err)
	}
}

// trainLocal trains with --local and returns the rows.
func trainLocal(t *testing.T, config string) tableRows {
	t.Helper()
	var o options
	train(t, &o, "--config", config, "--local")
	all := make(tableRows)
	for _, s := range o.localTables.Schemas() {
		of := make(map[rowraft.Key]string)
		keys, rows := o.localTables.Rows(s.ID)
		for i, key := range keys {
			b := make([]byte, s.Dim*s.StorageType().Size()+4*(len(rows[i])-s.Dim))
			state := b[s.Dim*s.StorageType().Size():]
			wire.PutFloats(b[:len(b)-len(state)], s.StorageType(), rows[i][:s.Dim])
			wire.PutFloats(state, rowraft.Float32, rows[i][s.Dim:])
			of[key] = string(b)
		}
		all[s.Name] = of
	}
	return all
}

// saved returns the rows of the only checkpoint in dest, of the tables of a job.
func saved(t *testing.T, dest, job string) tableRows {
	t.Helper()
	d, err := depot.Open(dest)
	if err != nil {
		t.Fatal(err)
	}
	found, err := depot.Scan(t.Context(), d)
	if err != nil || len(found) != 1 {
		t.Fatalf("%d checkpoints, %v, want 1", len(found), err)
	}
	chain, err := depot.Chain(t.Context(), d, found[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	all, names := make(tableRows), make(map[rowraft.TableID]string)
	for _, s := range chain.Manifest().Tables {
		if strings.HasPrefix(s.Schema.Name, job+".") {
			names[s.Schema.ID], all[s.Schema.Name] = s.Schema.Name, make(map[rowraft.Key]string)
		}
	}
	const header, key = 24, 8 // recency, count, key, version
	for i := range chain.Manifest().Shards {
		_, err := chain.ReadShard(t.Context(), i, nil, func(b *checkpoint.Block) error {
			for r := range slices.Chunk(b.Records, b.RecordBytes) {
				if of := all[names[b.Table]]; of != nil {
					of[rowraft.Key(uint64At(r[key:]))] = string(r[header:])
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func uint64At(b []byte) (v uint64) {
	for i := range 8 {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

func differences(t *testing.T, what string, got, want tableRows, reference string) {
	t.Helper()
	for _, table := range slices.Sorted(maps.Keys(want)) {
		if g, w := len(got[table]), len(want[table]); g != w {
			t.Errorf("%s: table %s has %d rows, %s %d", what, table, g, reference, w)
		}
		differ := 0
		for key, row := range want[table] {
			if got[table][key] != row {
				if differ++; differ == 1 {
					t.Errorf("%s: table %s: key %d is %x, %s %x", what, table, key, got[table][key], reference,
						row)
				}
			}
		}
		if differ > 0 {
			t.Errorf("%s: table %s: %d of %d rows differ", what, table, differ, len(want[table]))
		}
	}
}

// serve runs a cluster of one server in this process, until the test ends, and returns its address.
func serve(t *testing.T, shards int) string {
	t.Helper()
	var pair [2]net.Listener
	for i := range pair {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		pair[i] = l
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done, dir := make(chan node.Info, 1), make(chan error, 1), filepath.Join(t.TempDir(), "data")
	go func() {
		done <- node.Run(ctx, node.Config{
			DataDir: dir, Listener: pair[0], PeerListener: pair[1], WithScheduler: true,
			Shards: shards, Profile: "fast", DiskStallLimit: time.Minute, DiskReserveBytes: 1, Insecure: true,
			Logger: slog.New(slog.DiscardHandler), Ready: func(i node.Info) { ready <- i },
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	select {
	case i := <-ready:
		return i.Addr
	case err := <-done:
		done <- err
		t.Fatalf("the server ended before it was ready: %v", err)
	case <-testutil.Context(t).Done():
		t.Fatal("the server is not ready")
	}
	return ""
}
