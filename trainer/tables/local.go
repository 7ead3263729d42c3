package tables

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/client"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/wire"
)

// Local implements Tables inside the process, with the initializers and update rules of a shard, bit for bit,
// without replication, disk or network. It serves to try a model without a cluster, and as the reference for one.
// Safe for concurrent use.
type Local struct {
	shards *clustermap.Map
	dtype  rowraft.DType // pulls and pushes are rounded to it

	mu       sync.Mutex
	tables   []*localTable
	used     map[rowraft.TableID]bool // ids of all tables, also of those that were dropped: an id is not used again
	claims   map[string]int           // number of claims of each name
	gradient []float32                // scratch: one row
}

type localTable struct {
	schema rowraft.Schema
	rule   optim.Rule
	places map[rowraft.Key]int // looked up, never ranged over
	rows   []float32           // weights, then state, of each place
	free   []int               // places of rows that were deleted
	width  int                 // weights + state
	fresh  []float32           // scratch: a new row
}

var (
	_ Tables      = (*Local)(nil)
	_ Initializer = (*Local)(nil)
)

// NewLocal returns empty tables with KeyPerShard for a number of shards (≥ 1). Pulls and pushes are rounded to dtype,
// as by a client with numbers of that type on the wire.
func NewLocal(shards int, dtype rowraft.DType) (*Local, error) {
	list := make([]clustermap.Shard, shards)
	for i := range list {
		list[i].ID = rowraft.ShardID(i)
	}
	m, err := clustermap.New(clustermap.Map{Shards: list}, clustermap.EvenSlots(shards, rowraft.DefaultSlots))
	if err != nil {
		return nil, err
	}
	return &Local{shards: m, dtype: dtype}, nil
}

// EnsureTable implements [Tables].
func (l *Local) EnsureTable(_ context.Context, s rowraft.Schema) (rowraft.Schema, error) {
	return l.Create(s, true)
}

// Create creates a table and returns it with its ID. Errors: CodeTableExists if a table of that name has another shape
// or, without existOK, if there is any table of that name.
func (l *Local) Create(s rowraft.Schema, existOK bool) (rowraft.Schema, error) {
	if err := s.Validate(); err != nil {
		return s, err
	}
	if s.Admission != (rowraft.Admission{}) || s.Expire != 0 || s.Capacity != (rowraft.Capacity{}) {
		return s, invalid("table %s: a table inside the process keeps every row: no admission, expiry or capacity",
			s.Name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tables {
		switch {
		case t.schema.Name != s.Name:
		case !t.schema.SameShape(s):
			return s, rowraft.Errorf(rowraft.CodeTableExists, "table %s exists with another shape", s.Name)
		case !existOK:
			return s, rowraft.Errorf(rowraft.CodeTableExists, "table %s exists", s.Name)
		default:
			return t.schema, nil
		}
	}
	s.Initializer.NameHash = optim.NameHash(s.Name)
	for s.ID = rowraft.TableID(s.Initializer.NameHash).Origin() | 1; l.used[s.ID]; {
		s.ID = (s.ID + 2).Origin()
	}
	rule, err := optim.New(s.Optimizer)
	if err != nil {
		return s, err
	}
	if l.used == nil {
		l.used = make(map[rowraft.TableID]bool)
	}
	l.used[s.ID] = true
	width := s.Dim + rule.StateLen(s.Dim)
	l.tables = append(l.tables, &localTable{
		schema: s, rule: rule, width: width, places: make(map[rowraft.Key]int), fresh: make([]float32, width),
	})
	return s, nil
}

// Drop removes a table with its rows. Errors: CodeTableNotFound.
func (l *Local) Drop(table rowraft.TableID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := l.findLocked(table)
	if err == nil {
		l.tables = slices.DeleteFunc(l.tables, func(o *localTable) bool { return o == t })
	}
	return err
}

func (l *Local) findLocked(table rowraft.TableID) (*localTable, error) {
	for _, t := range l.tables {
		if t.schema.ID == table {
			return t, nil
		}
	}
	return nil, rowraft.Errorf(rowraft.CodeTableNotFound, "table %d does not exist", table)
}

// tableLocked returns the table of a segment of the right size.
func (l *Local) tableLocked(s *Segment) (*localTable, error) {
	t, err := l.findLocked(s.Table)
	if err == nil && (s.Dim != t.schema.Dim || len(s.Values) != len(s.Keys)*s.Dim) {
		err = invalid("table %s: %d keys, dim %d, %d values: the table has dim %d", t.schema.Name, len(s.Keys), s.Dim,
			len(s.Values), t.schema.Dim)
	}
	return t, err
}

// writeLocked is tableLocked for a segment of a push or an assign.
func (l *Local) writeLocked(s *Segment) (*localTable, error) {
	t, err := l.tableLocked(s)
	if err != nil {
		return nil, err
	}
	for i := 1; i < len(s.Keys); i++ {
		if s.Keys[i] <= s.Keys[i-1] {
			return nil, invalid("table %s: key %d follows %d: want strictly ascending keys", t.schema.Name, s.Keys[i],
				s.Keys[i-1])
		}
	}
	return t, wire.CheckNumbers(t.schema.Name, s.Keys, s.Values, s.Dim, s.LR, l.dtype)
}

// Pull implements [Tables]. Keys may repeat and come in any order.
func (l *Local) Pull(_ context.Context, segs []Segment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range segs {
		s := &segs[i]
		t, err := l.tableLocked(s)
		if err != nil {
			return err
		}
		for k, key := range s.Keys {
			dst := s.Values[k*s.Dim : (k+1)*s.Dim]
			if at, ok := t.places[key]; ok {
				copy(dst, t.rows[at:])
			} else {
				optim.Init(t.schema.Initializer, key, dst)
				wire.RoundTo(t.schema.StorageType(), dst)
			}
			wire.RoundTo(l.dtype, dst)
		}
	}
	return nil
}

// Copies implements [Tables]: the rows are here, and there are no copies.
func (l *Local) Copies() client.Copies { return client.Copies{} }

// Push implements [Tables].
func (l *Local) Push(_ context.Context, segs []Segment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range segs { // all or nothing
		if _, err := l.writeLocked(&segs[i]); err != nil {
			return err
		}
	}
	for i := range segs {
		s := &segs[i]
		t, _ := l.tableLocked(s)
		lr := s.LR
		if lr == 0 {
			lr = t.rule.LR()
		}
		for k, key := range s.Keys {
			row := t.row(key)
			l.gradient = append(l.gradient[:0], s.Values[k*s.Dim:(k+1)*s.Dim]...)
			wire.RoundTo(l.dtype, l.gradient)
			t.rule.Update(row[:s.Dim], row[s.Dim:], l.gradient, lr)
			if t.schema.StorageType() == rowraft.BFloat16 {
				t.rule.RoundPush(key, row[:s.Dim])
			}
			wire.RoundTo(t.schema.StorageType(), row[:s.Dim])
		}
	}
	return nil
}

// Present implements [Initializer].
func (l *Local) Present(ctx context.Context, seg Segment, present []bool) error {
	if err := l.Pull(ctx, []Segment{seg}); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := l.tableLocked(&seg)
	if err != nil || present == nil {
		return err
	}
	for i, k := range seg.Keys {
		_, present[i] = t.places[k]
	}
	return nil
}

// Claim implements [Initializer].
func (l *Local) Claim(_ context.Context, name string) (Assigner, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims == nil {
		l.claims = make(map[string]int)
	}
	l.claims[name]++
	return &localClaim{l, name, l.claims[name]}, nil
}

// localClaim is valid until the next claim of its name.
type localClaim struct {
	tables *Local
	name   string
	number int
}

// Assign implements [Assigner].
func (a *localClaim) Assign(_ context.Context, segs []Segment) error {
	l := a.tables
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.claims[a.name] != a.number {
		return rowraft.Errorf(rowraft.CodeSessionExpired, "another trainer has claimed %s", a.name)
	}
	return l.assignLocked(segs)
}

// Close implements [Assigner].
func (a *localClaim) Close() error { return nil }

// Assign sets weights, and keeps the state of the optimizer.
func (l *Local) Assign(segs []Segment) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.assignLocked(segs)
}

func (l *Local) assignLocked(segs []Segment) error {
	for i := range segs { // all or nothing
		if _, err := l.writeLocked(&segs[i]); err != nil {
			return err
		}
	}
	for i := range segs {
		s := &segs[i]
		t, _ := l.tableLocked(s)
		for k, key := range s.Keys {
			row := t.row(key)[:s.Dim]
			copy(row, s.Values[k*s.Dim:])
			wire.RoundTo(l.dtype, row)
			wire.RoundTo(t.schema.StorageType(), row)
		}
	}
	return nil
}

// Delete removes the rows of keys. It ignores a key without a row.
func (l *Local) Delete(table rowraft.TableID, keys []rowraft.Key) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := l.findLocked(table)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if at, ok := t.places[key]; ok {
			delete(t.places, key)
			t.free = append(t.free, at)
		}
	}
	return nil
}

// row returns the record of key, and creates it if it does not exist.
func (t *localTable) row(key rowraft.Key) []float32 {
	at, ok := t.places[key]
	if !ok {
		optim.Init(t.schema.Initializer, key, t.fresh[:t.schema.Dim])
		wire.RoundTo(t.schema.StorageType(), t.fresh[:t.schema.Dim])
		t.rule.InitState(t.fresh[:t.schema.Dim], t.fresh[t.schema.Dim:])
		if n := len(t.free); n > 0 {
			at, t.free = t.free[n-1], t.free[:n-1]
			copy(t.rows[at:], t.fresh)
		} else {
			at = len(t.rows)
			t.rows = append(t.rows, t.fresh...)
		}
		t.places[key] = at
	}
	return t.rows[at : at+t.width]
}

// Schemas returns the tables in the order in which they were created.
func (l *Local) Schemas() []rowraft.Schema {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []rowraft.Schema
	for _, t := range l.tables {
		out = append(out, t.schema)
	}
	return out
}

// Len returns the number of rows of a table.
func (l *Local) Len(table rowraft.TableID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := l.findLocked(table)
	if err != nil {
		return 0
	}
	return len(t.places)
}

// Scan calls rows with the weights of every row, a batch at a time, by ascending key. The slices belong to Scan, which
// overwrites them after rows returns. An error of rows ends the scan, and Scan returns it.
func (l *Local) Scan(table rowraft.TableID, rows func(keys []rowraft.Key, weights []float32) error) error {
	all, err := l.keys(table)
	var weights []float32
	for keys := range slices.Chunk(all, 4096) {
		if keys, weights, err = l.existing(table, keys, weights[:0]); err != nil {
			break
		}
		if err = rows(keys, weights); err != nil {
			break
		}
	}
	return err
}

func (l *Local) keys(table rowraft.TableID) ([]rowraft.Key, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := l.findLocked(table)
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(t.places)), nil
}

// existing returns those keys that have a row, in the place of keys, and appends the weights of the rows.
func (l *Local) existing(table rowraft.TableID, keys []rowraft.Key, weights []float32) ([]rowraft.Key, []float32,
	error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, err := l.findLocked(table)
	if err != nil {
		return nil, nil, err
	}
	keys = slices.DeleteFunc(keys, func(key rowraft.Key) bool {
		at, ok := t.places[key]
		if ok {
			weights = append(weights, t.rows[at:at+t.schema.Dim]...)
		}
		return !ok
	})
	wire.RoundTo(l.dtype, weights)
	return keys, weights, nil
}

// Rows returns the rows that exist in a table, by ascending key: the weights, then the optimizer's state. Two runs are
// equal if their rows have the same bits.
func (l *Local) Rows(table rowraft.TableID) (keys []rowraft.Key, rows [][]float32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.tables {
		if t.schema.ID != table {
			continue
		}
		keys = slices.Sorted(maps.Keys(t.places))
		for _, key := range keys {
			rows = append(rows, slices.Clone(t.row(key)))
		}
	}
	return keys, rows
}

// KeyPerShard implements [Tables].
func (l *Local) KeyPerShard(_ context.Context, table rowraft.TableID) ([]rowraft.Key, error) {
	return keyPerShard(l.shards, table)
}

// keyPerShard returns the smallest key of a sparse table in each shard.
func keyPerShard(m *clustermap.Map, table rowraft.TableID) ([]rowraft.Key, error) {
	keys := make([]rowraft.Key, 0, len(m.Shards))
	for shard := range len(m.Shards) {
		k, err := m.KeyInShard(table, rowraft.ShardID(shard))
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys, nil
}
