package data

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
)

// Draws against the exact law, by the χ² statistic, for exponents on both
// sides of 1 and 1 itself. The seeds are fixed, so the test cannot flicker.
func TestZipf(t *testing.T) {
	for _, tc := range []struct {
		n int64
		s float64
	}{{1, 1}, {2, 0.5}, {50, 0.1}, {50, 0.8}, {50, 1}, {50, 1.0000001}, {50, 1.05}, {50, 3}, {1 << 40, 1.2}} {
		z, err := NewZipf(tc.n, tc.s)
		if err != nil {
			t.Fatal(err)
		}
		g := &generated{state: 7}
		const draws = 200_000
		counts := make([]float64, 51)
		for range draws {
			k := z.Draw(g.uniform)
			if k < 1 || k > tc.n {
				t.Fatalf("n %d s %v: drew %d", tc.n, tc.s, k)
			}
			if k <= 50 {
				counts[k]++
			}
		}
		cells := int(min(tc.n, 50))
		total, all := 0.0, 0.0
		for k := 1; k <= cells; k++ {
			total += math.Pow(float64(k), -tc.s)
			all += counts[k]
		}
		chi := 0.0
		for k := 1; k <= cells; k++ {
			want := all * math.Pow(float64(k), -tc.s) / total
			chi += (counts[k] - want) * (counts[k] - want) / want
		}
		// 49 degrees of freedom: above 95 once in 10,000.
		if chi > 95 {
			t.Errorf("n %d s %v: χ² = %.1f over %d cells", tc.n, tc.s, chi, cells)
		}
	}
	for _, bad := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := NewZipf(10, bad); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("exponent %v: %v, want InvalidArgument", bad, err)
		}
	}
}

// The tables change no draw: with them and without, the same numbers give the same ranks.
func TestZipfTables(t *testing.T) {
	looked, all := 0, 0
	for _, n := range []int64{1, 2, 3, 50, 20_000, 1 << 17, 1 << 40} {
		for _, s := range []float64{0.1, 0.8, 1, 1.0000001, 1.05, 1.7, 3} {
			with, err := NewZipf(n, s)
			if err != nil {
				t.Fatal(err)
			}
			without := *with
			without.from = nil
			a, b := &generated{state: uint64(n)}, &generated{state: uint64(n)}
			for i := range 20_000 {
				if x, y := with.Draw(a.uniform), without.Draw(b.uniform); x != y || a.state != b.state {
					t.Fatalf("n %d, s %v, draw %d: %d with tables, %d without", n, s, i, x, y)
				}
				if n == 20_000 && s == 1.05 {
					all++
					if _, _, ok := with.look(with.hn + a.uniform()*(with.hx1-with.hn)); ok {
						looked++
					}
					b.uniform()
				}
			}
		}
	}
	if looked*1000 < all*999 {
		t.Errorf("%d of %d draws by tables, want 99.9 %%", looked, all)
	}
}

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
