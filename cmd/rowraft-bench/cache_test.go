package main

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/cli"
)

// Batches have distinct keys, the same in each run; with more skew they have fewer.
func TestBatchesOfTheCacheBench(t *testing.T) {
	b := cacheBench{benchConfig: benchConfig{rows: 1_000_000, seed: 1}}
	for i, want := range []int{51_800, 38_500, 22_300, 8_900} { // of 53,248 drawn
		again := b.batches(skews[i], 1)
		next := b.batches(skews[i], 1)
		keys := next()
		if n := len(keys); n < want*99/100 || n > want*101/100 {
			t.Errorf("%s: %d distinct keys, want about %d", skewName(skews[i]), n, want)
		}
		if !slices.Equal(keys, again()) || slices.Equal(keys, next()) {
			t.Errorf("%s: want the same batches in each run, and different ones in a run", skewName(skews[i]))
		}
		if !slices.IsSorted(keys) || len(slices.Compact(slices.Clone(keys))) != len(keys) {
			t.Errorf("%s: keys are not distinct and ascending", skewName(skews[i]))
		}
	}
}

func TestByteCountHasBothDirections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			io.Copy(conn, io.LimitReader(conn, 5))
			conn.Close()
		}
	}()
	var count byteCount
	n, err := count.of(func() error {
		conn, err := count.dial(context.Background(), l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := conn.Write([]byte("hello")); err != nil {
			return err
		}
		_, err = io.ReadAll(conn)
		return err
	})
	if err != nil || n != 10 {
		t.Errorf("%v bytes, %v, want 5 in each direction", n, err)
	}
}

func TestCacheVerdict(t *testing.T) {
	r := &cacheResult{Bar: cacheReuseBar, Skews: []cacheSkew{
		{Skew: 0, Arms: []cacheArm{{Pattern: "trainer", Name: "reuse"}}}, // has no bar
		{Skew: 1, Arms: []cacheArm{{Pattern: "trainer", Name: "no cache"}, {Pattern: "trainer", Name: "reuse", Saved: 0.35}}},
	}}
	if r.judge(); !r.Passed {
		t.Errorf("0.35 saved: %v", r.Failed)
	}
	r.Skews[1].Arms[1].Saved = 0.349
	r.judge()
	if err := r.Verdict("cache"); r.Passed || cli.ExitCode(t.Context(), err) != cli.ExitVerdict ||
		!strings.Contains(err.Error(), "Zipf 1.0, trainer: reuse saves 34.9 %") {
		t.Errorf("0.349 saved: %v", err)
	}
	var b strings.Builder
	if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "missed: Zipf 1.0") {
		t.Errorf("%v, printed\n%s", err, b.String())
	}
}

// A size that no client takes starts no servers.
func TestCacheBenchRefusesASize(t *testing.T) {
	_, err := benchCache(t.Context(), benchConfig{tables: 1, dtype: "float32", keys: "uniform", batch: 1, rows: 2,
		conns: 1, seconds: 1, replicas: 1, optimizer: "sgd", dim: 1, cacheBytes: 1}, io.Discard)
	if rowraft.CodeOf(err) != rowraft.CodeInvalidArgument || !strings.Contains(err.Error(), "cache of 1 bytes") {
		t.Errorf("%v", err)
	}
}
