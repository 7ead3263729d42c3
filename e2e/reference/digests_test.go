package reference

import (
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/shard"
	"github.com/rowraft/rowraft/wire"
)

// TestGoldenDigests: fixed pushes and assigns give the digests of testdata/digests.txt,
// in a Machine and in the reference, on every processor and in every build. The
// numbers are harmless, or such that the arithmetic overflows, underflows and makes
// NaNs.
func TestGoldenDigests(t *testing.T) {
	text, err := os.ReadFile("testdata/digests.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string)
	for line := range strings.Lines(string(text)) {
		if name, digest, ok := strings.Cut(strings.TrimSpace(line), " = "); ok {
			want[name] = digest
		}
	}
	seen := 0
	for _, c := range goldenCases() {
		got := c.digest(t)
		if seen++; got != want[c.name()] {
			t.Errorf("got\n%s = %s\nwant %q", c.name(), got, want[c.name()])
		}
	}
	if seen != len(want) {
		t.Errorf("testdata/digests.txt has %d lines, %d were checked", len(want), seen)
	}
}

type goldenCase struct {
	schema  rowraft.Schema
	grads   rowraft.DType
	extreme bool
}

func goldenCases() (out []goldenCase) {
	optimizers := []rowraft.Optimizer{sgd, adagrad, adam}
	initializers := []rowraft.Initializer{{Kind: rowraft.InitZeros},
		{Kind: rowraft.InitUniform, Seed: 7, NameHash: 0x9d3ab1f0c2e45768, A: -0.1, B: 0.1},
		{Kind: rowraft.InitNormal, Seed: 3, NameHash: 5, A: 1, B: 0.5}}
	for _, opt := range optimizers {
		for _, init := range initializers {
			for _, dim := range []int{1, 3, 16, 64, 100} {
				for _, grads := range []rowraft.DType{rowraft.Float32, rowraft.BFloat16} {
					for _, extreme := range []bool{false, true} {
						s := testTable(7, "golden", dim, opt)
						s.Initializer = init
						out = append(out, goldenCase{s, grads, extreme})
						s.Storage = rowraft.BFloat16
						out = append(out, goldenCase{s, grads, extreme})
					}
				}
			}
		}
	}
	for _, opt := range []rowraft.Optimizer{
		momentum, rowWise, ftrl, adding,
		with(sgd, 0.1, 2), with(adagrad, 0.1, 2), with(adam, 0.1, 2), with(momentum, 0.1, 2), with(rowWise, 0.1, 2),
		with(ftrl, 0, 2), with(adding, 0, 2),
	} {
		for _, dim := range []int{3, 16, 100} {
			for _, extreme := range []bool{false, true} {
				s := testTable(7, "golden", dim, opt)
				out = append(out, goldenCase{s, rowraft.Float32, extreme})
				s.Storage = rowraft.BFloat16
				out = append(out, goldenCase{s, rowraft.Float32, extreme})
			}
		}
	}
	return out
}

func (c *goldenCase) name() string {
	numbers := "ordinary"
	if c.extreme {
		numbers = "extreme"
	}
	optimizer := c.schema.Optimizer.Kind.String()
	if o := c.schema.Optimizer; o.WeightDecay != 0 || o.Bound != 0 {
		optimizer += fmt.Sprintf(" with decay %v and bound %v", o.WeightDecay, o.Bound)
	}
	initializer := [...]string{rowraft.InitZeros: "zeros", rowraft.InitUniform: "uniform",
		rowraft.InitNormal: "normal"}[c.schema.Initializer.Kind]
	grads := [...]string{rowraft.Float32: "float32", rowraft.BFloat16: "bfloat16"}[c.grads]
	stored := ""
	if c.schema.Storage == rowraft.BFloat16 {
		stored = " stored as bfloat16"
	}
	return fmt.Sprintf("%s, %s, dim %d%s, %s gradients, %s", optimizer, initializer, c.schema.Dim, stored, grads, numbers)
}

// extremes overflow and underflow when they are multiplied or added.
var extremes = []float32{math.MaxFloat32, -math.MaxFloat32, 1e38, -3e38, math.SmallestNonzeroFloat32, -1e-45, 1e-38,
	0x1p-126, -0x1p-149, 1e20, -1e19, 0, float32(math.Copysign(0, -1)), 1}

// numbers are n gradients or weights.
func (c *goldenCase) numbers(seed uint64, n int) []float32 {
	out := make([]float32, n)
	for i := range out {
		x := clustermap.Mix64(seed<<32 + uint64(i))
		out[i] = float32(float32(x>>40)/(1<<24)*6) - 3
		if c.extreme {
			out[i] = extremes[x%uint64(len(extremes))]
		}
		if c.grads == rowraft.BFloat16 { // cut off, since the largest would round to infinity
			out[i] = math.Float32frombits(math.Float32bits(out[i]) &^ 0xFFFF)
		}
	}
	return out
}

// entries is the log of the case.
func (c *goldenCase) entries() [][]byte {
	h := wire.EntryHeader{Version: 1, Epoch: 1, LogTime: 1}
	log := [][]byte{wire.CreateTableEntry(h, &c.schema),
		wire.OpenSessionEntry(h, wire.Opening{Client: clientID(1), Incarnation: 1})}
	add := func(op wire.Op, from, to rowraft.Key, step rowraft.Key, flags uint8, lr float32) {
		seq := rowraft.Seq(len(log))
		r := rows{schema: c.schema, dtype: c.grads, flags: flags, lr: lr}
		for k := from; k <= to; k += step {
			r.keys = append(r.keys, k)
		}
		r.values = c.numbers(uint64(seq), len(r.keys)*c.schema.Dim)
		log = append(log, entryOf(h, wire.Part{Client: clientID(1), Incarnation: 1, Seq: seq, Op: op, Payload: payloadOf(r)}))
	}
	for range 3 {
		add(wire.OpPush, 1, 20, 1, 0, 0)
	}
	add(wire.OpPush, 2, 40, 2, wire.FlagLR, 0.3)
	add(wire.OpAssign, 15, 30, 3, 0, 0)
	add(wire.OpPush, 1, 40, 1, wire.FlagLR, 2.5)
	return log
}

// digest applies the log to a Machine and to the reference, which must agree.
func (c *goldenCase) digest(t *testing.T) string {
	own, err := shard.New(shard.Config{Shard: 6})
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	ref := New(6, 0, nil)
	for i, entry := range c.entries() {
		index := rowraft.Index(i + 1)
		want, err := ref.Apply(index, entry)
		if err != nil || want[0] != (Answer{}) {
			t.Fatalf("%s: entry %d: %v, %v", c.name(), index, want, err)
		}
		if a, ok := own.Apply(index, entry).(*shard.Applied); !ok || a.Parts[0].Err != nil {
			t.Fatalf("%s: entry %d: %+v", c.name(), index, a)
		}
	}
	d, err := own.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if sum, rows := ref.Digest(); d.Sum != sum || d.Rows != rows {
		t.Errorf("%s: the Machine has %d rows, digest %x; the reference %d and %x", c.name(), d.Rows, d.Sum, rows, sum)
	}
	return hex.EncodeToString(d.Sum[:])
}
