package optim

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
)

// TestRoundPushGolden compares RoundPush with testdata/round.hex, which testdata/round.py derives from
// docs/formats/rules.md.
func TestRoundPushGolden(t *testing.T) {
	f, err := os.Open("testdata/round.hex")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := mustNew(t, rowraft.Optimizer{Kind: rowraft.SGD})
	lines := 0
	for sc := bufio.NewScanner(f); sc.Scan(); lines++ {
		fields := strings.Fields(sc.Text())
		key, err := strconv.ParseUint(fields[0], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		var w, want []float32
		for i, field := range fields[1:] {
			b, err := strconv.ParseUint(field, 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			if v := math.Float32frombits(uint32(b)); i%2 == 0 {
				w = append(w, v)
			} else {
				want = append(want, v)
			}
		}
		r.RoundPush(rowraft.Key(key), w)
		for i := range w {
			if got, want := math.Float32bits(w[i]), math.Float32bits(want[i]); got != want {
				t.Errorf("key %x weight %d is rounded to %08x, want %08x", key, i, got, want)
			}
		}
	}
	if lines != 6 {
		t.Fatalf("testdata/round.hex has %d rows, want 6", lines)
	}
}

// TestRoundPushBits: in every build, rows of each length are rounded like by the plain loop.
func TestRoundPushBits(t *testing.T) {
	t.Logf("SIMD kernels: %v", simd())
	r := mustNew(t, rowraft.Optimizer{Kind: rowraft.Adagrad})
	rng := rand.New(rand.NewPCG(2, 0))
	for dim := 1; dim <= 70; dim++ {
		for range 50 {
			key, w := rowraft.Key(rng.Uint64()), make([]float32, dim)
			for i := range w {
				w[i] = math.Float32frombits(rng.Uint32())
			}
			want := slices.Clone(w)
			h := mix64(uint64(key) + gamma)
			roundDrawnPlain(want, uint32(h), uint32(h>>32)|1)
			r.RoundPush(key, w)
			for i := range w {
				if got, want := math.Float32bits(w[i]), math.Float32bits(want[i]); got != want {
					t.Fatalf("dim %d weight %d: %08x, want %08x", dim, i, got, want)
				}
			}
		}
	}
}

// TestRoundPushIsUnbiased: over keys, over the positions of a row, and over the values that one weight takes from push
// to push, the share of roundings upward is the distance from the value below, within 4.5 standard deviations. Draws of
// neighbours are independent.
func TestRoundPushIsUnbiased(t *testing.T) {
	const n = 1 << 16
	r := mustNew(t, rowraft.Optimizer{Kind: rowraft.SGD})
	ups := func(w, below []float32) (n int) {
		for i := range w {
			switch got, b := math.Float32bits(w[i]), math.Float32bits(below[i]); got {
			case b:
			case b + 1<<16:
				n++
			default:
				t.Fatalf("%08x is rounded to %08x", b, got)
			}
		}
		return n
	}
	check := func(what string, got, n int, p float64) {
		t.Helper()
		want, dev := p*float64(n), math.Sqrt(float64(n)*p*(1-p))
		if math.Abs(float64(got)-want) > 4.5*dev {
			t.Errorf("%s: %d of %d are rounded up, want %.0f ± %.0f", what, got, n, want, dev)
		}
	}
	for _, low := range []uint32{0x0001, 0x0100, 0x1000, 0x4000, 0x8000, 0xC001, 0xFF00, 0xFFFF} {
		p := float64(low) / (1 << 16)
		for _, top := range []uint32{0x3F80, 0xBF80, 0x3DCC, 0x0001, 0xC2F7} {
			at := func(n int) (w, below []float32) {
				w, below = make([]float32, n), make([]float32, n)
				for i := range w {
					w[i], below[i] = math.Float32frombits(top<<16|low), math.Float32frombits(top<<16)
				}
				return w, below
			}
			name := fmt.Sprintf("%04x.%04x", top, low)
			up, pairs := 0, 0
			for key := range rowraft.Key(n / 16) {
				w, below := at(16)
				r.RoundPush(key, w)
				up += ups(w, below)
				for i := 0; i < 16; i += 2 {
					pairs += ups(w[i:i+1], below[i:]) & ups(w[i+1:i+2], below[i+1:])
				}
			}
			check(name+" over keys", up, n, p)
			check(name+" pairs", pairs, n/2, p*p)
			w, below := at(n)
			r.RoundPush(7, w)
			check(name+" over positions", ups(w, below), n, p)
		}
	}
	// One weight whose unrounded value differs from push to push by single bits: the sum of the errors is that of a
	// random walk.
	for _, stride := range []uint32{1, 2, 3, 16, 255, 4096} {
		for key := range rowraft.Key(8) {
			sum, variance := 0.0, 0.0
			for k := range uint32(n) {
				b := 0x3F800000 + k*stride
				w := []float32{math.Float32frombits(b)}
				r.RoundPush(key, w)
				p := float64(b&0xFFFF) / (1 << 16)
				sum += float64(int64(math.Float32bits(w[0]))-int64(b)) / (1 << 16)
				variance += p * (1 - p)
			}
			if math.Abs(sum) > 4.5*math.Sqrt(variance) {
				t.Errorf("key %d, values %d units apart: errors add up to %.0f spacings, want ± %.0f", key, stride, sum,
					math.Sqrt(variance))
			}
		}
	}
}

// TestRoundPushLeavesFTRL: the weights of FTRL are a function of its state.
func TestRoundPushLeavesFTRL(t *testing.T) {
	r := mustNew(t, rowraft.Optimizer{Kind: rowraft.FTRL, LR: 1})
	w := []float32{1.0001, -3.14159}
	want := slices.Clone(w)
	if r.RoundPush(1, w); !slices.Equal(w, want) {
		t.Errorf("%v, want %v", w, want)
	}
}

func BenchmarkRoundPush(b *testing.B) {
	r, w := mustNew(b, rowraft.Optimizer{Kind: rowraft.SGD}), make([]float32, 16)
	for i := range w {
		w[i] = float32(i) * 1.001
	}
	for i := range b.N {
		r.RoundPush(rowraft.Key(i), w)
		w[0] = 1.001
	}
}
