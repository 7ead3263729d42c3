package data

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

func tiny(t *testing.T, change func(*GeneratorConfig)) *Generator {
	t.Helper()
	cfg := DefaultGenerator()
	cfg.Examples, cfg.Held, cfg.Keys = 1000, 300, 100
	if change != nil {
		change(&cfg)
	}
	g, err := NewGenerator(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func train(t *testing.T, g Set, rank, trainers int) *Batch {
	t.Helper()
	s, err := g.Train(0, rank, trainers)
	if err != nil {
		t.Fatal(err)
	}
	return all(t, s, g.Shape(), 64)
}

func TestGenerator(t *testing.T) {
	g := tiny(t, nil)
	whole := train(t, g, 0, 1)
	t.Run("the same seed gives the same examples", func(t *testing.T) {
		again := train(t, tiny(t, nil), 0, 1)
		if !slices.Equal(whole.Keys, again.Keys) || !slices.Equal(whole.Dense, again.Dense) ||
			!slices.Equal(whole.Labels, again.Labels) {
			t.Error("two runs differ")
		}
		other := train(t, tiny(t, func(c *GeneratorConfig) { c.Seed = 2 }), 0, 1)
		if slices.Equal(whole.Keys, other.Keys) {
			t.Error("two seeds give the same keys")
		}
	})
	t.Run("ranks together give every example once", func(t *testing.T) {
		f := g.Shape().Categorical
		for rank := range 3 {
			part := train(t, g, rank, 3)
			for i := range part.N {
				at := rank + 3*i
				if !slices.Equal(part.Keys[i*f:i*f+f], whole.Keys[at*f:at*f+f]) || part.Labels[i] != whole.Labels[at] {
					t.Fatalf("example %d of rank %d is not example %d of the whole", i, rank, at)
				}
			}
		}
	})
	t.Run("held-out examples are others", func(t *testing.T) {
		s, err := g.Held()
		if err != nil {
			t.Fatal(err)
		}
		held := all(t, s, g.Shape(), 64)
		if held.N != 300 || slices.Equal(held.Dense[:8], whole.Dense[:8]) {
			t.Errorf("%d held-out examples, want 300 of a stream of their own", held.N)
		}
	})
	t.Run("labels follow the probabilities", func(t *testing.T) {
		many := train(t, tiny(t, func(c *GeneratorConfig) { c.Examples = 50_000 }), 0, 1)
		diff, variance := 0.0, 0.0
		for i, p := range many.Truth {
			diff += float64(many.Labels[i] - p)
			variance += float64(p * (1 - p))
		}
		if math.Abs(diff) > 4*math.Sqrt(variance) {
			t.Errorf("labels − probabilities = %.0f, want within %.0f of 0", diff, 4*math.Sqrt(variance))
		}
	})
	t.Run("dense numbers have mean 0 and variance 1", func(t *testing.T) {
		sum, squares := 0.0, 0.0
		for _, x := range whole.Dense {
			sum += float64(x)
			squares += float64(x) * float64(x)
		}
		n := float64(len(whole.Dense))
		if math.Abs(sum/n) > 0.06 || math.Abs(squares/n-1) > 0.1 {
			t.Errorf("mean %.3f variance %.3f", sum/n, squares/n)
		}
	})
	t.Run("bad configurations are refused", func(t *testing.T) {
		for name, spoil := range map[string]func(*GeneratorConfig){
			"no categories": func(c *GeneratorConfig) { c.Categorical = 0 }, "no keys": func(c *GeneratorConfig) { c.Keys = 0 },
			"exponent": func(c *GeneratorConfig) { c.Zipf = 0 }, "examples": func(c *GeneratorConfig) { c.Examples = -1 },
			"head": func(c *GeneratorConfig) { c.Head = 0 }, "signal": func(c *GeneratorConfig) { c.Signal = math.NaN() },
		} {
			cfg := DefaultGenerator()
			spoil(&cfg)
			if _, err := NewGenerator(cfg); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
				t.Errorf("%s: %v, want InvalidArgument", name, err)
			}
		}
	})
}

// What gen writes reads back as the same examples.
func TestWriteCSV(t *testing.T) {
	for _, dense := range []int{0, 3} {
		g := tiny(t, func(c *GeneratorConfig) { c.Dense = dense })
		want := train(t, g, 0, 1)
		path := filepath.Join(t.TempDir(), "clicks.csv")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := g.WriteCSV(t.Context(), f, 1000); err != nil {
			t.Fatal(err)
		}
		f.Close()
		file, err := openFile(path, schema(t, g.SchemaYAML()), 0)
		if err != nil {
			t.Fatal(err)
		}
		got := train(t, file, 0, 1)
		if !slices.Equal(got.Labels, want.Labels) || !slices.Equal(got.Dense, want.Dense) ||
			!slices.Equal(got.Keys, want.Keys) {
			t.Errorf("dense %d: the file differs from the generator", dense)
		}
	}
}

func BenchmarkGenerator(b *testing.B) {
	g, err := NewGenerator(GeneratorConfig{Dense: 4, Categorical: 8, Keys: 20000, Zipf: 1.05, Head: 100})
	if err != nil {
		b.Fatal(err)
	}
	s, err := g.Train(0, 0, 1)
	if err != nil {
		b.Fatal(err)
	}
	batch := NewBatch(512, g.Shape())
	b.ReportAllocs()
	began := cpu()
	for b.Loop() {
		if err := s.Next(batch); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*512)/(cpu()-began).Seconds(), "examples/cpu-s")
}
