package rowstore

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/wire"
)

// Pull writes the weights of keys to dst: row i, dim numbers of type dt,
// little-endian, belongs to keys[i].
//
// keys may repeat and come in any order. A key never pushed reads as the
// initializer and is not created. present may be nil; otherwise Pull sets bit i%8 of
// byte i/8 if keys[i] has a row and clears it if not. Pull keeps no argument
// and allocates nothing.
//
// Errors: CodeInvalidArgument if dst or present does not fit the keys or dt is unknown, before anything is written;
// CodeWrongShard if a key's slot is not owned.
func (t *Table) Pull(keys []rowraft.Key, dst []byte, dt rowraft.DType, present []byte) error {
	if err := t.index.checkArgs(keys, len(dst), dt); err != nil {
		return err
	}
	if present != nil {
		if len(present) != (len(keys)+7)/8 {
			return rowraft.Errorf(rowraft.CodeInvalidArgument,
				"table %s: presence bitmap of %d bytes for %d keys: want %d bytes",
				t.schema.Name, len(present), len(keys), (len(keys)+7)/8)
		}
		clear(present)
	}
	t.lock.RLock()
	defer t.lock.RUnlock()
	defer t.index.grace.Leave(t.index.grace.Enter())
	if t.index.tier != nil {
		return t.index.tier.pull(keys, dst, dt, present, 0)
	}
	var ahead lookahead
	ahead.start(t, keys, t.index.stateAt, false)
	rowBytes := t.index.dim * dt.Size()
	for base := 0; ; {
		at, n := ahead.next(t, keys)
		if n == 0 {
			return ahead.err
		}
		for i, key := range keys[base : base+n] {
			out := dst[:rowBytes:rowBytes]
			dst = dst[rowBytes:]
			found := dt == t.index.storage && t.index.copiedAtOnce(&ahead.lookups, at+i, key, out)
			if !found && t.index.read(&ahead.lookups, at+i, key, out, dt, noVersion) == 0 {
				t.index.putInitial(out, dt, key)
				continue
			}
			if present != nil {
				present[(base+i)/8] |= 1 << ((base + i) % 8)
			}
		}
		base += n
	}
}

// Update creates the rows of keys that have none, runs the optimizer with
// learning rate lr on each row, and gives the row the next version of its slot. grads
// holds dim numbers of type dt for each key, little-endian. Update allocates nothing per row.
//
// Keys may repeat; Update applies them in the order given.
//
// REQUIRES: no other writer uses the table at the same time (see the package's "Concurrency"); the caller has checked
// that the slots of keys are owned.
//
// Errors: CodeInvalidArgument as in Pull, before anything changes; CodeWrongShard if a slot is not owned after all;
// CodeOverloaded if the system has no memory. In the last two cases an unknown part of the
// rows has changed: the replica must stop and restore its state.
func (t *Table) Update(keys []rowraft.Key, grads []byte, dt rowraft.DType, lr float32) error {
	return t.UpdateCounted(keys, grads, dt, lr, nil)
}

// UpdateCounted is Update for sums of gradients: counts[i] is how many pushes of keys[i] its gradient sums, at least 1.
// In a tracked table each of them counts as a push of its own, and the last one changes the row
// (docs/formats/streaming.md). Other tables ignore counts, and nil means 1.
func (t *Table) UpdateCounted(keys []rowraft.Key, grads []byte, dt rowraft.DType, lr float32, counts []byte) error {
	return t.change(keys, counts, rowChange{lr: lr, arg: grads, dtype: dt})
}

// Assign creates the rows of keys that have none, sets their weights to values,
// and gives them the next version of their slot. The optimizer state stays as it is, except
// where [optim.Rule.Assign] changes it. Everything else is as in Update.
func (t *Table) Assign(keys []rowraft.Key, values []byte, dt rowraft.DType) error {
	return t.change(keys, nil, rowChange{assign: true, arg: values, dtype: dt})
}

// change is UpdateCounted or Assign.
func (t *Table) change(keys []rowraft.Key, counts []byte, do rowChange) error {
	if err := t.index.checkArgs(keys, len(do.arg), do.dtype); err != nil {
		return err
	}
	if t.index.tier != nil || t.track != nil { // for other tables the lookup checks each group
		if err := t.index.checkKeys(keys); err != nil {
			return err
		}
	}
	t.beginChange()
	defer t.endChange()
	if t.index.tier != nil {
		if err := t.index.tier.load(keys); err != nil {
			return err
		}
	}
	do.records, do.rule, do.scratch, do.wide = &t.index.records, &t.rule, t.scratch, t.wide
	do.inPlace = wire.InPlace(do.dtype, do.arg)
	var ahead lookahead
	ahead.start(t, keys, t.index.rowBytes(), true)
	for base := 0; ; {
		at, n := ahead.next(t, keys)
		if n == 0 {
			return ahead.err
		}
		for i, key := range keys[base : base+n] {
			if t.track != nil {
				pushes := 1
				if counts != nil {
					pushes = int(counts[base+i])
				}
				if err := t.changeTracked(&ahead.lookups, at+i, key, pushes, &do, base+i); err != nil {
					return err
				}
				continue
			}
			r, was, err := t.open(&ahead.lookups, at+i, key)
			if err != nil {
				return err
			}
			do.compute(r, base+i)
			t.index.seal(ahead.slot[at+i], ahead.tag[at+i], r, was)
		}
		base += n
	}
}

// changeTracked changes the row of key in a tracked table by the sum of pushes: key is number i of c, and the sum is
// that number of do. docs/formats/streaming.md specifies the order of the steps.
func (t *Table) changeTracked(c *lookups, i int, key rowraft.Key, pushes int, do *rowChange, number int) error {
	ok, err := t.mayPush(c, i, key, do.assign)
	for ; !ok && err == nil && pushes > 1; pushes-- {
		ok, err = t.mayPush(c, i, key, do.assign)
	}
	if !ok || err != nil {
		return err
	}
	r, was, err := t.open(c, i, key)
	if err != nil {
		return err
	}
	for s := t.index.slot(c.slot[i]); ; pushes-- {
		t.track.countPush(r, s.version)
		if pushes == 1 {
			break
		}
		s.version++
		*r.version() = s.version | busy
	}
	do.compute(r, number)
	t.index.seal(c.slot[i], c.tag[i], r, was)
	return nil
}

// rowChange is what a change does to each row: it runs the optimizer, or assigns values.
type rowChange struct {
	*records
	rule    *optim.Rule
	lr      float32
	assign  bool
	inPlace []float32 // wire.InPlace of arg
	arg     []byte    // dim numbers for each key
	dtype   rowraft.DType
	scratch []float32 // for the numbers of one key
	wide    []float32 // for the weights of one row
}

// numbers returns the numbers of arg for key number i. They are valid until the next call.
func (c *rowChange) numbers(i int) []float32 {
	if c.inPlace != nil {
		return c.inPlace[i*c.dim:][:c.dim]
	}
	wire.GetFloats(c.scratch, c.dtype, c.arg[i*c.dim*c.dtype.Size():])
	return c.scratch
}

// compute changes the row of key number i in float32, and then rounds the weights to their storage type.
func (c *rowChange) compute(r record, i int) {
	w := c.wide
	if c.storage == rowraft.Float32 {
		w = c.floats(r)
	} else {
		wire.GetFloats(w, c.storage, c.weights(r))
	}
	if c.assign {
		c.rule.Assign(w, c.state(r), c.numbers(i))
	} else {
		c.rule.Update(w, c.state(r), c.numbers(i), c.lr)
	}
	if c.storage == rowraft.BFloat16 {
		c.store(r, c.rule, w, c.assign)
	}
}

// mayPush reports whether key, number i of c, has a row or may get one. In the second case it makes room for it.
func (t *Table) mayPush(c *lookups, i int, key rowraft.Key, assign bool) (bool, error) {
	if _, ok := t.index.record(c, i, key); ok {
		return true, nil
	}
	slot, tag := c.slot[i], c.tag[i]
	if !assign {
		if ok, err := t.track.admit(slot, tag, key); !ok {
			return false, err
		}
	}
	t.track.forget(slot, tag, key)
	t.track.counters.admitted.Add(1)
	return true, t.makeRoom(slot)
}

// open prepares the record of key, number i of c, for a change. It returns the record and the hash that the digest has
// of it, which seal replaces. open saves an image for each snapshot that needs one, and marks the record busy, so that
// readers wait until seal. It creates a missing row from the initializer.
func (t *Table) open(c *lookups, i int, key rowraft.Key) (r record, was Digest, err error) {
	r, ok := t.index.record(c, i, key)
	if !ok {
		r, err = t.create(c.slot[i], c.tag[i], key)
		return r, Digest{}, err
	}
	if len(t.snaps.running) > 0 {
		if err := t.snaps.saveImage(c.slot[i], c.tag[i], r); err != nil {
			return r, Digest{}, err
		}
	}
	was = t.index.rowHash(r)
	r.setBusy()
	return r, was, nil
}

// create makes the row of key from the initializer. The record is busy until seal.
func (t *Table) create(slot rowraft.Slot, tag uint32, key rowraft.Key) (record, error) {
	t.snaps.prepareSlot(slot)
	r, err := t.insert(slot, tag, key)
	if err != nil {
		return r, err
	}
	w := t.wide
	optim.Init(t.schema.Initializer, key, w)
	stored := t.index.weights(r)
	clear(stored[len(stored)-4:]) // a bfloat16 row of odd dim ends with padding
	wire.PutFloats(stored, t.index.storage, w)
	t.rule.InitState(wire.Floats(w, t.index.storage, stored), t.index.state(r))
	return r, nil
}

// insert is index.insert, for a slot that prepareSlot has claimed.
func (t *Table) insert(slot rowraft.Slot, tag uint32, key rowraft.Key) (record, error) {
	r, old, err := t.index.insert(slot, tag, key)
	if len(old) > 0 {
		t.snaps.outgrow(slot, old)
	}
	return r, err
}

// Contains reports whether key has a row. The slot of key must be owned.
func (t *Table) Contains(key rowraft.Key) bool {
	t.lock.RLock()
	defer t.lock.RUnlock()
	defer t.index.grace.Leave(t.index.grace.Enter())
	slot, tag := t.index.locate(key)
	return t.index.has(slot, tag, key)
}
