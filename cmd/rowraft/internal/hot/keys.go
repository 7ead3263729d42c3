package hot

import (
	"cmp"
	"math"
	"slices"

	"github.com/rowraft/rowraft/internal/cli"
)

// keysJSON is the contract of `hot keys -o json`.
type keysJSON struct {
	Schema      string   `json:"schema"`
	OverSeconds float64  `json:"over_seconds"`
	Rows        float64  `json:"rows_per_second"`
	Counted     int      `json:"keys_counted"` // keys with counters
	Zipf        float64  `json:"zipf"`         // exponent that fits the hottest keys; 0: unknown
	Keys        []hotKey `json:"keys"`
	Curve       []point  `json:"curve"`
	Silent      []string `json:"silent"` // servers that did not answer
}

type hotKey struct {
	Table  string  `json:"table"`
	Key    uint64  `json:"key"`
	Shard  uint32  `json:"shard"`
	Leader string  `json:"leader"`
	Rows   float64 `json:"rows_per_second"`
	Share  float64 `json:"share"`
	Low    float64 `json:"share_low"` // the share is between these in 19 of 20 cases
	High   float64 `json:"share_high"`

	table   uint64
	samples float64 // accesses that were sampled
}

// point is the share of the first Keys keys.
type point struct {
	Keys  int     `json:"keys"`
	Share float64 `json:"share"`
}

// newKeys combines the counts of the servers.
func newKeys(s *seen, limit int) *keysJSON {
	v := &keysJSON{Schema: cli.JSONSchema, Keys: []hotKey{}, Curve: []point{}, Silent: append([]string{}, s.silent...)}
	leaders := s.leaders()
	type name struct {
		table, key uint64
		shard      uint32
	}
	found := make(map[name]*hotKey)
	floors := make(map[uint32]float64) // by shard: the rate that a key may have without a counter
	spread := 0.0                      // sum of rate² / samples: all accesses have so much weight in squares
	for _, heat := range s.heat {
		for _, h := range heat {
			f := perSecond(h)
			v.OverSeconds = max(v.OverSeconds, float64(h.GetOverNs())/1e9)
			floors[h.GetShard()] += h.GetFloor() * f
			for _, t := range h.GetTables() {
				rate := (t.GetPulled() + t.GetPushed()) * f
				v.Rows += rate
				if t.GetSamples() > 0 {
					spread += rate * rate / t.GetSamples()
				}
			}
			for _, k := range h.GetKeys() {
				n := name{k.GetTable(), k.GetKey(), h.GetShard()}
				at := found[n]
				if at == nil {
					at = &hotKey{Table: s.tableName(n.table), Key: n.key, Shard: n.shard, Leader: leaders[n.shard], table: n.table}
					found[n] = at
				}
				at.Rows += k.GetCount() * f
				at.Low += (k.GetCount() - k.GetError()) * f
				at.High += (k.GetCount() - h.GetFloor()) * f // the floors of the other servers are added below
			}
		}
	}
	if v.Rows == 0 {
		return v
	}
	samples := v.Rows * v.Rows / max(spread, math.SmallestNonzeroFloat64)
	all := make([]hotKey, 0, len(found))
	for _, k := range found {
		k.Share = k.Rows / v.Rows
		k.samples = k.Share * samples
		noise := 2 * math.Sqrt(max(k.Share*(1-k.Share), 1/samples)/samples)
		k.Low = max(k.Low/v.Rows-noise, 0)
		k.High = min((k.High+floors[k.Shard])/v.Rows+noise, 1)
		all = append(all, *k)
	}
	slices.SortFunc(all, func(a, b hotKey) int {
		return cmp.Or(cmp.Compare(b.Rows, a.Rows), cmp.Compare(a.Table, b.Table), cmp.Compare(a.Key, b.Key))
	})
	v.Counted, v.Zipf, v.Curve = len(all), zipf(all), curve(all)
	v.Keys = append(v.Keys, all[:min(limit, len(all))]...)
	return v
}

// curve returns how much the first 1, 2, 5, 10 … keys receive.
func curve(all []hotKey) (out []point) {
	sum, at := 0.0, 0
	for tens := 1; at < len(all); tens *= 10 {
		for _, n := range []int{tens, 2 * tens, 5 * tens} {
			if n > len(all) {
				return out
			}
			for ; at < n; at++ {
				sum += all[at].Share
			}
			out = append(out, point{n, min(sum, 1)})
		}
	}
	return out
}

// zipf returns the exponent of the power law that fits the keys that were sampled often enough, by least squares of the
// logarithms; 0 if these are too few: there were few accesses, or they are flat.
func zipf(all []hotKey) float64 {
	const enough, minKeys, maxFit = 40, 8, 200
	var n, sx, sy, sxx, sxy float64
	for i, k := range all[:min(len(all), maxFit)] {
		if k.samples < enough || k.High-k.Low > k.Share/2 {
			break
		}
		x, y := math.Log(float64(i+1)), math.Log(k.Share)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	if n < minKeys {
		return 0
	}
	return max(-(n*sxy-sx*sy)/(n*sxx-sx*sx), 0)
}
