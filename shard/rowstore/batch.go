package rowstore

import (
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/wire"
)

// check returns an error for keys of slots that the table does not own and for arguments of the wrong
// length. It runs before anything changes.
func (t *Table) check(keys []rowraft.Key, numBytes int, dt rowraft.DType) error {
	if dt.Size() == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: %s: want float32 or bfloat16", t.schema.Name, dt)
	}
	if want := len(keys) * t.dim * dt.Size(); numBytes != want {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: %d bytes of numbers for %d keys: want %d × dim %d × %d bytes = %d",
			t.schema.Name, numBytes, len(keys), len(keys), t.dim, dt.Size(), want)
	}
	return t.checkSlots(keys)
}

func (t *Table) checkSlots(keys []rowraft.Key) error {
	for _, key := range keys {
		if slot := t.slotOf(key); !t.Owns(slot) {
			return t.notOwned(key, slot)
		}
	}
	return nil
}

// notOwned is the error for a key of a slot that the table does not own.
func (t *Table) notOwned(key rowraft.Key, slot rowraft.Slot) error {
	return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: key %d is in slot %d, which this shard does not hold",
		t.schema.Name, key, slot)
}

// Pull writes the weights of keys to dst: row i, dim numbers of type dt,
// little-endian, belongs to keys[i].
//
// keys may repeat and come in any order. A key never pushed reads as the
// initializer and is not created. present may be nil; otherwise Pull sets bit i%8 of
// byte i/8 if keys[i] has a row and clears it if not. Pull keeps no argument
// and allocates nothing.
//
// Pull returns an error before it writes anything: CodeInvalidArgument if dst or present
// does not fit the keys or dt is unknown; CodeWrongShard if a key's slot is not owned.
func (t *Table) Pull(keys []rowraft.Key, dst []byte, dt rowraft.DType, present []byte) error {
	if err := t.check(keys, len(dst), dt); err != nil {
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
	defer t.grace.leave(t.grace.enter())
	var ahead chunks
	ahead.start(t, keys, t.stateAt, false)
	rowBytes := t.dim * dt.Size()
	for base := 0; ; {
		c, n := ahead.next(t, keys)
		if n == 0 {
			return nil
		}
		for i, key := range keys[base : base+n] {
			out := dst[:rowBytes:rowBytes]
			dst = dst[rowBytes:]
			if !t.read(c, i, key, out, dt) {
				t.putInitial(out, dt, key)
				continue
			}
			if present != nil {
				present[(base+i)/8] |= 1 << ((base + i) % 8)
			}
		}
		base += n
	}
}

// putInitial writes the weights of a key without a row.
func (t *Table) putInitial(dst []byte, dt rowraft.DType, key rowraft.Key) {
	var part [64]float32
	for first := 0; first < t.dim; first += len(part) {
		w := part[:min(len(part), t.dim-first)]
		optim.InitFrom(t.schema.Initializer, t.schema.ID, key, first, w)
		if t.storage == rowraft.BFloat16 {
			roundAll(w)
		}
		wire.PutFloats(dst[first*dt.Size():], dt, w)
	}
}

// Update creates the rows of keys that have none, runs the optimizer with
// learning rate lr on each row, and gives the row the next version of its slot. grads
// holds dim numbers of type dt for each key, little-endian. Update allocates nothing per row.
//
// Keys may repeat; Update applies them in the order given.
//
// REQUIRES: no other writer uses the table at the same time (see the package's "Concurrency").
//
// Errors: CodeInvalidArgument and CodeWrongShard as in Pull, before anything changes;
// CodeOverloaded if the system has no memory. In that case an unknown part of the
// rows has changed: the replica must stop and restore its state.
func (t *Table) Update(keys []rowraft.Key, grads []byte, dt rowraft.DType, lr float32) error {
	return t.change(keys, grads, dt, false, func(w, state, g []float32) {
		t.rule.Update(w, state, g, lr)
	})
}

// Assign creates the rows of keys that have none, sets their weights to values,
// and gives them the next version of their slot. The optimizer state stays as it is, except
// where [optim.Rule.Assign] changes it. Everything else is as in Update.
func (t *Table) Assign(keys []rowraft.Key, values []byte, dt rowraft.DType) error {
	return t.change(keys, values, dt, true, func(w, state, v []float32) { t.rule.Assign(w, state, v) })
}

// change calls do for each key with the weights and the state of its row and the numbers of
// the argument for that key. It rounds the weights to the storage type after do returns.
func (t *Table) change(
	keys []rowraft.Key, arg []byte, dt rowraft.DType, assign bool, do func(w, state, arg []float32),
) error {
	if err := t.check(keys, len(arg), dt); err != nil {
		return err
	}
	t.lock.Lock()
	defer t.lock.Unlock()
	t.reclaim()
	defer t.done()
	if t.track != nil {
		return t.changeTracked(keys, arg, dt, assign, do)
	}
	var ahead chunks
	ahead.start(t, keys, t.RecordBytes(), true)
	rowBytes := t.dim * dt.Size()
	for base := 0; ; {
		c, n := ahead.next(t, keys)
		if n == 0 {
			return nil
		}
		for i, key := range keys[base : base+n] {
			values := floats(arg[:rowBytes:rowBytes], dt, t.scratch)
			arg = arg[rowBytes:]
			r, err := t.open(c, i, key)
			if err != nil {
				return err
			}
			w := floats(t.weights(r), t.storage, t.wide)
			do(w, t.state(r), values)
			t.store(r, w)
			t.seal(c.slot[i], c.tag[i], r)
		}
		base += n
	}
}

// open prepares the record of keys[i] for a change and returns it. It subtracts the old hash
// from the digest, saves an image for each snapshot that needs one, and marks the record busy,
// so that readers wait until seal. It creates a missing row from the initializer.
func (t *Table) open(c *chunk, i int, key rowraft.Key) (record, error) {
	r, ok := t.record(c, i, key)
	if !ok {
		// An earlier key of the chunk may have created this row after the lookup.
		r, ok = t.find(c.slot[i], c.tag[i], key)
	}
	if ok {
		if err := t.saveImage(c.slot[i], c.tag[i], r); err != nil {
			return r, err
		}
		t.subtract(c.slot[i], c.tag[i], r)
		r.setBusy()
		return r, nil
	}
	t.prepareSlot(c.slot[i])
	r, err := t.insert(c.slot[i], c.tag[i], key)
	if err != nil {
		return r, err
	}
	w := t.wide
	optim.Init(t.schema.Initializer, t.schema.ID, key, w)
	stored := t.weights(r)
	clear(stored[len(stored)-4:]) // a bfloat16 row of odd dim ends with padding
	wire.PutFloats(stored, t.storage, w)
	t.rule.InitState(floats(stored, t.storage, w), t.state(r))
	return r, nil
}

// store writes back the weights that floats returned for r.
func (t *Table) store(r record, w []float32) {
	if t.storage == rowraft.BFloat16 { // floats returns float32 weights in place
		wire.PutFloats(t.weights(r), t.storage, w)
	}
}

// seal ends a change: it gives r the next version of its slot and adds its hash to the digest.
func (t *Table) seal(slot rowraft.Slot, tag uint32, r record) {
	s := t.slot(slot)
	s.version++
	r.setVersion(s.version)
	h := t.rowHash(r)
	s.digest = s.digest.Add(h)
	if t.slotCheck.active && t.slotCheck.slot == slot && t.checked(tag, r) {
		t.slotCheck.sum = t.slotCheck.sum.Add(h)
	}
}

// subtract removes the hash of r from the digest. The caller then changes or removes r.
func (t *Table) subtract(slot rowraft.Slot, tag uint32, r record) {
	s, h := t.slot(slot), t.rowHash(r)
	s.digest = s.digest.Sub(h)
	if t.slotCheck.active && t.slotCheck.slot == slot && t.checked(tag, r) {
		t.slotCheck.sum = t.slotCheck.sum.Sub(h)
	}
}

// Contains reports whether key has a row. The slot of key must be owned.
func (t *Table) Contains(key rowraft.Key) bool {
	t.lock.RLock()
	defer t.lock.RUnlock()
	defer t.grace.leave(t.grace.enter())
	slot, tag := t.locate(key)
	_, ok := t.find(slot, tag, key)
	return ok
}
