package ondevice

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/cache"
	"github.com/rowraft/rowraft/trainer/accel"
	"github.com/rowraft/rowraft/trainer/models"
)

// TestRowsStayWithinTheirBound: each row states the step at which it was pulled. The model computes e·1 from an
// embedding e and that of a key whose row is always 1, so that its predictions state which row it had. Each batch is
// sent before the one ahead of it is computed. The cache is much smaller than the keys that batches have.
func TestRowsStayWithinTheirBound(t *testing.T) {
	b, _, err := accel.Open(accel.CPU)
	if err != nil {
		t.Fatal(err)
	}
	const size, keys, most, unit = 16, 400, 5, 1e-3
	const ones = rowraft.Key(0)
	r, err := New(b, Job{Kind: "dlrm", Bytes: 4 * 120, Tables: 1,
		Model: models.DLRMGraphConfig{Batch: size, Categorical: 2, Dim: 1}})
	if err == nil {
		err = r.open()
	}
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	type sent struct {
		Batch
		step  uint64
		since uint64
		keys  []rowraft.Key
		index []int32
		n     int
	}
	stale, reused := 0, 0
	compute := func(s *sent) {
		in := &models.Batch{N: s.n, Labels: make([]float32, size)}
		var out models.Result
		grads := make([]float32, len(s.keys))
		if err := r.Step(&s.Batch, in, []float32{1, 0}, &out, grads); err != nil { // weight and bias of the pair
			t.Fatal(err)
		}
		want := make([]float64, len(s.keys))
		for i, p := range out.Predictions {
			logit := math.Log(float64(p) / (1 - float64(p)))
			asOf := uint64(math.Round(logit / unit))
			if asOf < s.since || asOf > s.step {
				t.Fatalf("step %d: key %d has the row of step %d, want %d or later", s.step, s.keys[s.index[2*i]], asOf, s.since)
			}
			if asOf < s.step {
				reused++
			}
			stale = max(stale, int(s.step-asOf))
			// d/d(row) of the mean loss, for labels of 0: p/n times the other factor.
			want[s.index[2*i]] += float64(p) / float64(s.n)
			want[s.index[2*i+1]] += float64(p) / float64(s.n) * float64(asOf) * unit
		}
		for i := range want {
			if math.Abs(float64(grads[i])-want[i]) > 1e-4 {
				t.Fatalf("step %d: gradient of row %d is %v, want %v", s.step, i, grads[i], want[i])
			}
		}
	}
	var ahead *sent
	for step := uint64(most + 1); step < 800; step++ {
		s := &sent{step: step, since: step - random.Uint64N(most+1), keys: []rowraft.Key{ones}, n: 1 + random.IntN(size)}
		chosen := make([]rowraft.Key, s.n)
		for i := range chosen {
			chosen[i] = rowraft.Key(1 + min(random.IntN(keys), random.IntN(keys), random.IntN(keys)))
			s.keys = append(s.keys, chosen[i])
		}
		slices.Sort(s.keys)
		s.keys = slices.Compact(s.keys)
		s.index = slices.Repeat([]int32{int32(len(s.keys))}, 2*size) // padding has no values
		for i, k := range chosen {
			at, _ := slices.BinarySearch(s.keys, k)
			s.index[2*i], s.index[2*i+1] = int32(at), 0
		}
		r.missing(&s.Batch, s.keys, cache.Reuse{Now: step, Since: s.since})
		for i, k := range s.Batch.keys {
			s.Batch.values[i] = float32(step) * unit
			if k == ones {
				s.Batch.values[i] = 1
			}
		}
		if err := r.send(&s.Batch, s.keys, s.index); err != nil {
			t.Fatal(err)
		}
		if ahead != nil {
			compute(ahead)
		}
		ahead = s
	}
	n := r.Copies()
	t.Logf("%+v; %d rows reused, up to %d steps old", n, reused, stale)
	if stale != most || reused < 400 || n.Evicted < 100 {
		t.Errorf("%d rows reused, up to %d steps old, %d evicted: want many, %d, many", reused, stale, n.Evicted, most)
	}
}
