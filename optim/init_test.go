package optim

import (
	"bufio"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestInitGolden compares Init with testdata/init.hex, which testdata/init.py
// derives from the formula in Init's comment with Python integers and floats.
func TestInitGolden(t *testing.T) {
	f, err := os.Open("testdata/init.hex")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		var n []uint64
		for _, field := range strings.Fields(sc.Text()) {
			v, err := strconv.ParseUint(field, 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			n = append(n, v)
		}
		init := rowraft.Initializer{
			Kind: rowraft.InitializerKind(n[0]), Seed: n[1], NameHash: n[2],
			A: math.Float32frombits(uint32(n[4])), B: math.Float32frombits(uint32(n[5])),
		}
		key := rowraft.Key(n[3])
		got := make([]float32, 8)
		Init(init, key, got)
		for i, w := range got {
			if uint64(math.Float32bits(w)) != n[6+i] {
				t.Errorf("Init(%+v, %x)[%d] = %08x, want %08x", init, key, i, math.Float32bits(w), n[6+i])
			}
		}
		for first := range 8 {
			part := make([]float32, 8-first)
			InitFrom(init, key, first, part)
			if !slices.Equal(part, got[first:]) {
				t.Errorf("InitFrom(%+v, first %d) = %v, want %v", init, first, part, got[first:])
			}
		}
	}
	if lines != 30 {
		t.Fatalf("testdata/init.hex has %d vectors, want 30", lines)
	}
}

// TestNameHash: the values are those of Python's xxhash.xxh3_64.
func TestNameHash(t *testing.T) {
	for name, want := range map[string]uint64{"t": 0x76033e85f0acf92d, "users": 0x4ce8a257f7c83669,
		"ctr.embeddings": 0xc964ab58fd1a494b} {
		if got := NameHash(name); got != want {
			t.Errorf("NameHash(%q) = %#x, want %#x", name, got, want)
		}
	}
}

func TestInitDistribution(t *testing.T) {
	const n = 20000
	for _, tc := range []struct {
		name                string
		init                rowraft.Initializer
		mean, dev, min, max float64
	}{
		{"uniform has mean (A+B)/2 and deviation (B-A)/√12",
			rowraft.Initializer{Kind: rowraft.InitUniform, Seed: 3, A: -1, B: 3}, 1, 4 / math.Sqrt(12), -1, 3},
		{"normal has mean A and deviation B and ends at ±6·B",
			rowraft.Initializer{Kind: rowraft.InitNormal, Seed: 3, A: 2, B: 0.5}, 2, 0.5, -1, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var sum, sq float64
			w := make([]float32, 16)
			for key := range n {
				Init(tc.init, rowraft.Key(key), w)
				for _, v := range w {
					if float64(v) < tc.min || float64(v) >= tc.max {
						t.Fatalf("key %d: weight %v, want in [%v, %v)", key, v, tc.min, tc.max)
					}
					sum += float64(v)
					sq += float64(v) * float64(v)
				}
			}
			mean := sum / (16 * n)
			dev := math.Sqrt(sq/(16*n) - mean*mean)
			if math.Abs(mean-tc.mean) > 0.01*tc.dev || math.Abs(dev-tc.dev) > 0.01*tc.dev {
				t.Errorf("mean %v deviation %v, want %v and %v", mean, dev, tc.mean, tc.dev)
			}
		})
	}
}

func BenchmarkInit(b *testing.B) {
	for _, kind := range []rowraft.InitializerKind{rowraft.InitUniform, rowraft.InitNormal} {
		b.Run(map[rowraft.InitializerKind]string{rowraft.InitUniform: "uniform",
			rowraft.InitNormal: "normal"}[kind]+"/dim=16", func(b *testing.B) {
			w := make([]float32, 16)
			key := rowraft.Key(0)
			for b.Loop() {
				Init(rowraft.Initializer{Kind: kind, A: -1, B: 1}, key, w)
				key++
			}
		})
	}
}
