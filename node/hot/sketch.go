package hot

import (
	"cmp"
	"container/heap"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/wire"
)

const (
	// counters is the number of keys that a sketch counts: no error is larger than the 1,024th of all accesses.
	counters = 1024
	// One of minStride keys is counted, and about sampled keys of a large request. In a second a sketch takes at most
	// samplesPerSecond samples, and at most serverSamples ÷ shards: a busy server counts one of more keys. A sample costs
	// 1 µs, and 7 µs if the sketch is not in the caches of the processor.
	minStride        = 16
	sampled          = 8
	samplesPerSecond = 256
	serverSamples    = 2048
	// halfLife is how often the counts halve.
	halfLife = 30 * time.Second
	// maxTables is the number of tables with totals of their own; there are no more in a shard.
	maxTables = 1024
)

// Sketch counts the accesses to the hottest keys of one shard on one server. Safe for concurrent use.
type Sketch struct {
	shards func() int // returns the number of the cluster's shards

	mu      sync.Mutex
	keys    map[id]int32 // counter of each key that has one
	heap    byCount
	tables  map[rowraft.TableID]*Total
	began   time.Time     // of the interval since counts were halved; zero: nothing was counted
	earlier time.Duration // the intervals before it, halved as the counts are

	stride  int       // one of so many keys is counted
	samples int       // since second
	second  time.Time // when the number of samples was last compared with their limit
}

// NewSketch returns an empty Sketch of one of the shards of a cluster. shards returns their number, and does not wait.
func NewSketch(shards func() int) *Sketch { return &Sketch{shards: shards} }

type id struct {
	table rowraft.TableID
	key   rowraft.Key
}

// Count is how often a key was accessed: at most Count and at least Count − Error times, sampling apart.
type Count struct {
	Table        rowraft.TableID
	Key          rowraft.Key
	Count, Error float64
}

// Total is the number of accesses to a table.
type Total struct {
	Table          rowraft.TableID
	Pulled, Pushed float64
	Weights        float64 // sum of the squares of the samples' weights
}

// View is the content of a sketch.
type View struct {
	Over   time.Duration // the counts are those of about so long
	Tables []Total
	Keys   []Count // by count, the highest first
	Floor  float64 // a key that is not among all Keys has at most this count
}

// Add counts the keys of a request, which begins with segments.
func (s *Sketch) Add(segments []byte, push bool) {
	n := 0
	for rest := segments; len(rest) > 0; {
		seg, _, next, err := wire.ParseSegment(rest)
		if err != nil {
			return // the service refuses the request
		}
		n, rest = n+seg.N, next
	}
	if n == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.decayLocked(now)
	s.paceLocked(now)
	stride := max(s.stride, n/sampled)
	next := rand.IntN(stride)
	for len(segments) > 0 {
		seg, body, rest, err := wire.ParseSegment(segments)
		if err != nil {
			return
		}
		segments = rest
		t := s.totalLocked(seg.Table)
		if push {
			t.Pushed += float64(seg.N)
		} else {
			t.Pulled += float64(seg.N)
		}
		for ; next < seg.N; next += stride {
			t.Weights += float64(stride) * float64(stride)
			s.addLocked(id{seg.Table, body.Key(next)}, float64(stride))
			s.samples++
		}
		next -= seg.N
	}
}

// paceLocked chooses the stride: twice the last one as soon as there are too many samples, half of it after a second
// with too few.
func (s *Sketch) paceLocked(now time.Time) {
	most := min(max(serverSamples/max(s.shards(), 1), 1), samplesPerSecond)
	switch {
	case s.samples >= most:
		s.stride *= 2
	case now.Sub(s.second) < time.Second:
		return
	case s.samples < most/2:
		s.stride = max(minStride, s.stride/2)
	}
	s.samples, s.second = 0, now
}

func (s *Sketch) totalLocked(table rowraft.TableID) *Total {
	t := s.tables[table]
	if t == nil {
		if len(s.tables) >= maxTables { // of dropped tables
			clear(s.tables)
		}
		t = &Total{Table: table}
		s.tables[table] = t
	}
	return t
}

func (s *Sketch) addLocked(k id, weight float64) {
	h := &s.heap
	if c, ok := s.keys[k]; ok {
		h.counters[c].Count += weight
		heap.Fix(h, int(h.places[c]))
		return
	}
	if c := len(h.counters); c < counters {
		s.keys[k] = int32(c)
		heap.Push(h, Count{Table: k.table, Key: k.key, Count: weight})
		return
	}
	c := h.order[0]
	least := &h.counters[c]
	delete(s.keys, id{least.Table, least.Key})
	*least = Count{Table: k.table, Key: k.key, Count: least.Count + weight, Error: least.Count}
	s.keys[k] = c
	heap.Fix(h, 0)
}

// decayLocked halves the counts for each interval that has passed.
func (s *Sketch) decayLocked(now time.Time) {
	if s.began.IsZero() {
		s.keys, s.tables, s.began = make(map[id]int32, counters), make(map[rowraft.TableID]*Total), now
		return
	}
	n := int(now.Sub(s.began) / halfLife)
	if n == 0 {
		return
	}
	s.began = s.began.Add(time.Duration(n) * halfLife)
	factor := 1.0
	for ; n > 0 && factor > 1e-12; n-- {
		factor /= 2
		s.earlier = (s.earlier + halfLife) / 2
	}
	for i := range s.heap.counters {
		s.heap.counters[i].Count *= factor
		s.heap.counters[i].Error *= factor
	}
	for _, t := range s.tables {
		t.Pulled, t.Pushed, t.Weights = t.Pulled*factor, t.Pushed*factor, t.Weights*factor*factor
	}
}

// View returns at most limit keys of a table; 0: of any table.
func (s *Sketch) View(table rowraft.TableID, limit int) (v View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.began.IsZero() {
		return v
	}
	s.decayLocked(now)
	v.Over = now.Sub(s.began) + s.earlier
	for _, t := range s.tables {
		if t.Pulled+t.Pushed >= 0.5 && (table == 0 || t.Table == table) {
			v.Tables = append(v.Tables, *t)
		}
	}
	slices.SortFunc(v.Tables, func(a, b Total) int { return cmp.Compare(a.Table, b.Table) })
	for _, c := range s.heap.counters {
		if c.Count >= 0.5 && (table == 0 || c.Table == table) {
			v.Keys = append(v.Keys, c)
		}
	}
	slices.SortFunc(v.Keys, func(a, b Count) int {
		if n := cmp.Compare(b.Count, a.Count); n != 0 {
			return n
		}
		return cmp.Compare(a.Key, b.Key)
	})
	if len(s.heap.counters) == counters {
		v.Floor = s.heap.counters[s.heap.order[0]].Count
	}
	if len(v.Keys) > limit {
		v.Floor, v.Keys = max(v.Floor, v.Keys[limit].Count), v.Keys[:limit]
	}
	return v
}

// byCount is a heap of counters, the lowest count first. A counter keeps its number: the heap moves numbers, and no map
// changes.
type byCount struct {
	counters []Count
	order    []int32 // numbers of the counters, as a heap
	places   []int32 // place of each counter in order
}

func (h *byCount) Len() int { return len(h.order) }

func (h *byCount) Less(i, j int) bool {
	return h.counters[h.order[i]].Count < h.counters[h.order[j]].Count
}

func (h *byCount) Swap(i, j int) {
	h.order[i], h.order[j] = h.order[j], h.order[i]
	h.places[h.order[i]], h.places[h.order[j]] = int32(i), int32(j)
}

func (h *byCount) Push(x any) {
	n := int32(len(h.counters))
	h.counters, h.order, h.places = append(h.counters, x.(Count)), append(h.order, n), append(h.places, n)
}

func (*byCount) Pop() any { panic("hot: a counter is never removed") }
