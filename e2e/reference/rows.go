package reference

import (
	"math"

	"github.com/zeebo/xxh3"

	"github.com/rowraft/rowraft"
)

// Row is the record of one key.
type Row struct {
	Recency, Count uint32 // of tracked tables: tick of the last push, pushes

	Version uint64
	Weights []float32
	// State is the optimizer state, in the order of docs/formats/snapshot.md.
	State []float32

	half bool // the weights are stored as bfloat16
}

// recordSize is the length of a record of a table.
func recordSize(s *rowraft.Schema) int {
	weights := 4 * s.Dim
	if s.Storage == rowraft.BFloat16 {
		weights = (2*s.Dim + 3) / 4 * 4
	}
	return 24 + weights + 4*stateLength(s)
}

// parseRecord reads a record of recordSize bytes; nil if it is impossible for s.
func parseRecord(s *rowraft.Schema, rec []byte) (rowraft.Key, *Row) {
	r := &Row{Recency: le.Uint32(rec), Count: le.Uint32(rec[4:]), Version: le.Uint64(rec[16:]),
		half: s.Storage == rowraft.BFloat16}
	key, rest := rowraft.Key(le.Uint64(rec[8:])), rec[24:]
	for range s.Dim {
		if r.half {
			r.Weights = append(r.Weights, math.Float32frombits(uint32(le.Uint16(rest))<<16))
			rest = rest[2:]
		} else {
			r.Weights = append(r.Weights, float(rest))
			rest = rest[4:]
		}
	}
	if pad := len(rest) % 4; !zero(rest[:pad]) {
		return key, nil
	} else {
		rest = rest[pad:]
	}
	for ; len(rest) > 0; rest = rest[4:] {
		r.State = append(r.State, float(rest))
	}
	return key, r
}

// mix64, slotOf: docs/formats/hash.md.
func mix64(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

const gamma = 0x9E3779B97F4A7C15

func (t *Table) slotOf(key rowraft.Key) rowraft.Slot { return slotOf(&t.Schema, t.slots, key) }

func slotOf(s *rowraft.Schema, slots uint64, key rowraft.Key) rowraft.Slot {
	if s.Kind == rowraft.Dense {
		key = key >> 40 << 40
	}
	return rowraft.Slot(mix64(uint64(key)^mix64(uint64(s.ID)%(1<<48)+gamma)) / (1 << 63 / slots * 2))
}

// InitialWeights returns the weights of a key that was never pushed:
// docs/formats/rules.md.
func InitialWeights(s *rowraft.Schema, key rowraft.Key) []float32 {
	w := drawWeights(s, key)
	round(s, w)
	return w
}

// round rounds weights to the storage type of their table: docs/formats/rules.md.
func round(s *rowraft.Schema, w []float32) {
	if s.Storage != rowraft.BFloat16 {
		return
	}
	for i, v := range w {
		bits := uint64(math.Float32bits(v))
		half, up := bits>>16, bits&0xFFFF
		switch {
		case v != v:
			half |= 0x40
		case up > 0x8000 || up == 0x8000 && half%2 == 1:
			half++
		}
		w[i] = math.Float32frombits(uint32(half << 16))
	}
}

// draw rounds the weights that a push of key has computed to bfloat16: docs/formats/rules.md.
func draw(key rowraft.Key, w []float32) {
	h := mix64(uint64(key) + gamma)
	first, step := h%(1<<32), h>>32|1
	for i, v := range w {
		if v != v {
			continue
		}
		bits := uint64(math.Float32bits(v))
		x := (bits ^ (first+uint64(i)*step)%(1<<32)) * 0x7FEB352D % (1 << 32)
		x = (x ^ x/(1<<15)) * 0x846CA68B % (1 << 32)
		if bits%(1<<16)+x/(1<<16) >= 1<<16 {
			bits += 1 << 16
		}
		w[i] = math.Float32frombits(uint32(bits / (1 << 16) * (1 << 16)))
	}
}

func drawWeights(s *rowraft.Schema, key rowraft.Key) []float32 {
	w := make([]float32, s.Dim)
	i := s.Initializer
	h := mix64(mix64(mix64(i.Seed+gamma)^i.NameHash) ^ uint64(key))
	x := func(j int) uint64 { return mix64(h + uint64(j)*gamma) }
	for n := range w {
		switch i.Kind {
		case rowraft.InitUniform:
			u := float64(float64(x(n+1)>>11) / (1 << 53))
			w[n] = float32(float64(i.A) + float64(u*(float64(i.B)-float64(i.A))))
			if w[n] >= i.B {
				w[n] = i.A
			}
		case rowraft.InitNormal:
			sum := 0
			for j := 3*n + 1; j <= 3*n+3; j++ {
				for shift := 0; shift < 64; shift += 16 {
					sum += int(x(j) >> shift & 0xFFFF)
				}
			}
			z := float64(float64(2*sum-786420) / (1 << 17))
			w[n] = float32(float64(i.A) + float64(float64(i.B)*z))
		}
	}
	return w
}

func (m *Machine) applySegment(op byte, seg segment) {
	t := seg.table
	lr := t.Schema.Optimizer.LR
	if seg.hasLR {
		lr = seg.lr
	}
	for i, key := range seg.keys {
		for n := 1; seg.counts != nil && n < seg.counts[i]; n++ {
			m.applyRow(op, t, key, lr, nil)
		}
		var numbers []float32
		if op != opDelete {
			numbers = seg.rows[i]
		}
		m.applyRow(op, t, key, lr, numbers)
	}
}

// applyRow applies one op to one row. A push without numbers leaves weights and state as they are.
func (m *Machine) applyRow(op byte, t *Table, key rowraft.Key, lr float32, numbers []float32) {
	r := t.Rows[key]
	slot := t.slotOf(key)
	if op == opDelete {
		if r != nil {
			m.remove(t, key)
		} else if _, waits := t.Candidates[key]; waits {
			m.setCandidate(t, key, Candidate{})
			t.Counters[slot]++
		}
		return
	}
	if r == nil {
		if op != opAssign && !m.admits(t, slot, key) {
			return
		}
		m.setCandidate(t, key, Candidate{})
		m.evict(t, slot)
		w := InitialWeights(&t.Schema, key)
		r = &Row{half: t.Schema.Storage == rowraft.BFloat16, Weights: w, State: initialState(&t.Schema, w)}
		t.Rows[key] = r
	} else {
		m.sum = m.sum.minus(r.hash(key))
	}
	if op == opAssign {
		copy(r.Weights, numbers)
		if t.Schema.Optimizer.Kind == rowraft.FTRL {
			fit(t.Schema.Optimizer, r.Weights, r.State)
		}
	} else if numbers != nil {
		r.push(t.Schema.Optimizer, lr, numbers)
		if r.half && t.Schema.Optimizer.Kind != rowraft.FTRL {
			draw(key, r.Weights)
		}
	}
	round(&t.Schema, r.Weights)
	t.Counters[slot]++
	t.touch(r, t.Counters[slot], m.tick())
	r.Version = t.Counters[slot]
	m.sum = m.sum.plus(r.hash(key))
}

// remove removes the row of key from t.
func (m *Machine) remove(t *Table, key rowraft.Key) {
	slot := t.slotOf(key)
	m.sum = m.sum.minus(t.Rows[key].hash(key))
	delete(t.Rows, key)
	t.Counters[slot]++
	t.Removed[slot] = t.Counters[slot]
}

// record returns the row as in a snapshot, from byte 8 on.
func (r *Row) record(key rowraft.Key) []byte {
	b := le.AppendUint64(nil, uint64(key))
	b = le.AppendUint64(b, r.Version)
	for _, v := range r.Weights {
		if r.half {
			b = le.AppendUint16(b, uint16(math.Float32bits(v)>>16))
		} else {
			b = le.AppendUint32(b, math.Float32bits(v))
		}
	}
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	for _, v := range r.State {
		b = le.AppendUint32(b, math.Float32bits(v))
	}
	return b
}

func (r *Row) hash(key rowraft.Key) Sum {
	h := xxh3.Hash128(r.record(key))
	return Sum{h.Hi, h.Lo}
}
