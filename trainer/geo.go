package trainer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/optim"
)

// geo is mode geo: the worker trains its own copy of the rows it meets with optimizers
// of its own, and every few batches a round sends what changed to tables that add it, and reads
// those rows anew. What the model sees of another worker is at most two rounds old.
//
// A worker's first rounds come after 1, 2, 4, … batches, and training waits for them, until they
// are every apart. The first batches decide for each row and layer which of several equally good
// solutions it takes, a sign say; workers that are alone for all of them choose differently, the
// mean of their choices is none, and rows that only one of them meets keep them from agreeing later.
//
// A row of the copy has three vectors: its weights, its base and its optimizer state.
// weights − base is what the tables do not know yet. A round takes that difference, sets base to
// weights and, once the tables have added it, moves both by what the tables say meanwhile, so that
// progress made beside the round is kept.
//
// Goroutines: any may call pull and push; a round runs on one of its own, or, at first and with
// in_flight 0, in push. mu is not held across a call to the tables.
type geo struct {
	direct
	tables []*geoTable // immutable; embeddings, dense and, with audit, audit
	every  int64
	beside bool // rounds run beside training

	// round is full while one runs.
	round chan struct{}
	all   sync.WaitGroup

	mu      sync.Mutex
	batches int64   // pushed since the last round began
	before  int64   // pushed until then
	sending int64   // that the round which runs sends
	pieces  []piece // of the data, of those batches that no round has sent
	now     uint64  // rounds begun, plus 1
	tick    uint64  // calls of pull and push
}

// geoTable is the copy of one table. Its fields are under geo.mu, but for those that say so.
type geoTable struct {
	schema rowraft.Schema // immutable: of the table
	rule   optim.Rule     // immutable: the worker's
	share  float32        // immutable: of a difference that is sent
	limit  int            // immutable: rows at most; 0: all

	places map[rowraft.Key]int32 // looked up, never ranged over
	rows   []float32             // weights, base and state of each place
	metas  []geoRow
	dirty  []int32 // places with a difference, unless it is being sent
	free   []int32 // places without a row
}

// geoRow says of a row in the copy how it stands to the table.
type geoRow struct {
	key     rowraft.Key
	read    uint64 // the round in which base was read; 0: the place is free
	touched uint64 // the tick at which it was last pulled or pushed
	dirty   bool   // weights ≠ base, maybe
	sending bool   // base is what the table will have when it has added what it was sent
}

func newGeo(j *Job) (*geo, error) {
	g := &geo{direct: direct{j}, every: int64(j.cfg.Geo.every()), beside: j.cfg.InFlight > 0, round: make(chan struct{}, 1), now: 1}
	add := func(schema rowraft.Schema, o rowraft.Optimizer, share float32, limit int) error {
		rule, err := optim.New(o)
		if err != nil {
			return err
		}
		g.tables = append(g.tables, &geoTable{schema: schema, rule: rule, share: share, limit: limit, places: make(map[rowraft.Key]int32)})
		return nil
	}
	share := j.cfg.Geo.share(j.cfg.Trainers)
	if j.cfg.embedded() {
		o, _ := j.cfg.Embeddings.optimizer() // Validate has seen it
		if err := add(j.embeddings, o, share, j.cfg.Geo.rows()); err != nil {
			return nil, err
		}
	}
	o, _ := j.cfg.Dense.optimizer()
	for i := range j.layout.tables {
		if err := add(j.layout.tables[i].schema, o, share, 0); err != nil {
			return nil, err
		}
	}
	if j.cfg.Audit { // whole: it counts batches
		return g, add(j.audit, auditOptimizer, 1, 0)
	}
	return g, nil
}

func (g *geo) table(id rowraft.TableID) *geoTable {
	for _, t := range g.tables {
		if t.schema.ID == id {
			return t
		}
	}
	panic(fmt.Sprintf("trainer: table %d is none of the job's", id))
}

// missing is what a copy has to read of a table: rows that it has not, or has from too
// long ago.
type missing struct {
	Segment
	reads []uint64 // of each key as it was when it was listed; 0: no row
	rows  int      // keys without a row
}

// pull implements way.
func (g *geo) pull(ctx context.Context, w *work) error {
	return g.with(ctx, w.segs, func(t *geoTable, s *Segment) {
		w.stale = g.batches + g.sending
		t.showLocked(s)
	})
}

// renew gives w, which was pulled before the batches ahead of it were trained on, what these
// have made of its rows: eight gradients of one and the same state, each a first step of an
// optimizer, once left a model that learnt little more (AUC 0.74 after 200 batches, not 0.78).
func (g *geo) renew(w *work) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.stale = g.batches + g.sending
	for i := range w.segs {
		g.table(w.segs[i].Table).showLocked(&w.segs[i])
	}
}

// showLocked fills s with the weights of the rows that are there; what was evicted, with all
// that was learnt, stays as it is in s.
func (t *geoTable) showLocked(s *Segment) {
	for k, key := range s.Keys {
		if at, ok := t.places[key]; ok {
			copy(s.Values[k*s.Dim:], t.rowLocked(at).weights)
		}
	}
}

// with calls f, under mu, for each of segs when the copy has all their rows. Rows that it
// has not, or that were read before the last round and have no progress of this worker, it
// reads from the tables.
func (g *geo) with(ctx context.Context, segs []Segment, f func(*geoTable, *Segment)) error {
	for {
		lists, fits, err := g.list(segs)
		if err != nil {
			return err
		}
		if !fits { // what the tables do not know must be sent before it is evicted
			if err := g.runRound(ctx); err != nil {
				return err
			}
			continue
		}
		if len(lists) > 0 {
			want := make([]Segment, len(lists))
			for i := range lists {
				want[i] = lists[i].Segment
			}
			if err := g.j.tables.Pull(ctx, want); err != nil {
				return err
			}
		}
		if g.insert(lists, segs, f) {
			return nil
		}
	}
}

// list says what has to be read for segs, and whether there is room for it.
func (g *geo) list(segs []Segment) (lists []missing, fits bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tick++
	for i := range segs {
		t := g.table(segs[i].Table)
		if t.limit > 0 && len(segs[i].Keys) > t.limit {
			return nil, false, invalid("geo: rows %d: a batch has %d", t.limit, len(segs[i].Keys))
		}
		m := t.missingLocked(segs[i].Keys, g.now, g.tick)
		if t.limit > 0 && !t.evictLocked(m.rows, g.tick) {
			return nil, false, nil
		}
		if len(m.Keys) > 0 {
			m.Values = make([]float32, len(m.Keys)*m.Dim)
			lists = append(lists, m)
		}
	}
	return lists, true, nil
}

// insert puts what was read into the copy and calls f, unless a row of segs was evicted
// meanwhile.
func (g *geo) insert(lists []missing, segs []Segment, f func(*geoTable, *Segment)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range lists {
		g.table(lists[i].Table).insertLocked(&lists[i], g.now, g.tick)
	}
	for i := range segs {
		t := g.table(segs[i].Table)
		for _, key := range segs[i].Keys {
			if _, ok := t.places[key]; !ok {
				return false
			}
		}
	}
	for i := range segs {
		f(g.table(segs[i].Table), &segs[i])
	}
	return true
}

// missingLocked lists the keys to read, and marks all as touched.
func (t *geoTable) missingLocked(keys []rowraft.Key, now, tick uint64) missing {
	m := missing{Segment: Segment{Table: t.schema.ID, Dim: t.schema.Dim}}
	for _, key := range keys {
		at, ok := t.places[key]
		if !ok {
			m.Keys, m.reads, m.rows = append(m.Keys, key), append(m.reads, 0), m.rows+1
			continue
		}
		r := &t.metas[at]
		r.touched = tick
		if r.read < now && !r.dirty && !r.sending {
			m.Keys, m.reads = append(m.Keys, key), append(m.reads, r.read)
		}
	}
	return m
}

// insertLocked puts what was read into the copy, but for rows that have changed since
// they were listed.
func (t *geoTable) insertLocked(m *missing, now, tick uint64) {
	for i, key := range m.Keys {
		at, ok := t.places[key]
		if !ok {
			at = t.addLocked(key)
		}
		r := &t.metas[at]
		r.touched = tick
		if ok && r.read != m.reads[i] { // whoever trains a row that is old reads it first
			continue
		}
		r.read = now
		row, values := t.rowLocked(at), m.Values[i*m.Dim:][:m.Dim]
		copy(row.base, values)
		if ok {
			t.rule.Assign(row.weights, row.state, values)
		} else {
			copy(row.weights, values)
			t.rule.InitState(row.weights, row.state)
		}
	}
}

// addLocked makes a place for key.
func (t *geoTable) addLocked(key rowraft.Key) int32 {
	var at int32
	if n := len(t.free); n > 0 {
		at, t.free = t.free[n-1], t.free[:n-1]
	} else {
		at = int32(len(t.metas))
		t.metas = append(t.metas, geoRow{})
		t.rows = append(t.rows, make([]float32, t.width())...)
	}
	t.metas[at] = geoRow{key: key}
	t.places[key] = at
	return at
}

func (t *geoTable) width() int { return 2*t.schema.Dim + t.rule.StateLen(t.schema.Dim) }

// copied is one row of a copy.
type copied struct{ weights, base, state []float32 }

func (t *geoTable) rowLocked(at int32) copied {
	d, w := t.schema.Dim, t.width()
	row := t.rows[int(at)*w:][:w]
	return copied{row[:d], row[d : 2*d], row[2*d:]}
}

// push implements way: the batch trains the copy, and begins a round when one is due.
func (g *geo) push(ctx context.Context, w *work) error {
	read, cancel := context.WithTimeout(ctx, g.j.cfg.Patience)
	defer cancel()
	due, beside := false, false
	// Rows may have left the copy since they were pulled.
	err := g.with(read, w.segs, func(t *geoTable, s *Segment) {
		t.trainLocked(s)
		if s == &w.segs[0] {
			g.batches++
			g.pieces = append(g.pieces, w.piece)
			due, beside = g.batches >= g.intervalLocked(), g.beside && g.before >= g.every
		}
	})
	switch {
	case err != nil:
		return g.j.fail(fmt.Errorf("step %d: read %d rows: %w", w.step, rowsOf(w.segs), err))
	case !due:
		return nil
	case !beside:
		return g.runRound(ctx)
	}
	select {
	case g.round <- struct{}{}:
		g.all.Go(func() {
			_ = g.sendAndRead(ctx) // kept by the job
			<-g.round
		})
	default: // the next one begins when this has ended
	}
	return nil
}

// intervalLocked is how many batches the next round is after the last.
func (g *geo) intervalLocked() int64 { return min(g.every, max(1, g.before)) }

func (t *geoTable) trainLocked(s *Segment) {
	lr := s.LR
	if lr == 0 {
		lr = t.rule.LR()
	}
	for k, key := range s.Keys {
		at := t.places[key]
		row := t.rowLocked(at)
		t.rule.Update(row.weights, row.state, s.Values[k*s.Dim:][:s.Dim], lr)
		if r := &t.metas[at]; !r.dirty {
			r.dirty = true
			t.dirty = append(t.dirty, at)
		}
	}
}

// evictLocked makes room for n more rows, if need be by the eighth that was not touched
// for longest, and tells whether there is. A row that the tables do not know all of stays, and
// one that was touched at tick.
func (t *geoTable) evictLocked(n int, tick uint64) bool {
	if len(t.places)+n <= t.limit {
		return true
	}
	var old []int32
	for at := range t.metas {
		if r := &t.metas[at]; r.read != 0 && r.touched != tick && !r.dirty && !r.sending {
			old = append(old, int32(at))
		}
	}
	slices.SortFunc(old, func(a, b int32) int {
		x, y := &t.metas[a], &t.metas[b]
		return cmp.Or(cmp.Compare(x.touched, y.touched), cmp.Compare(x.key, y.key))
	})
	for _, at := range old[:min(len(old), len(t.places)+n-t.limit+t.limit/8)] {
		delete(t.places, t.metas[at].key)
		t.metas[at] = geoRow{}
		t.free = append(t.free, at)
	}
	return len(t.places)+n <= t.limit
}
