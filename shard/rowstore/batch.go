package rowstore

import (
	"unsafe"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/optim"
	"github.com/rowraft/rowraft/wire"
)

// checkArgs returns an error for arguments of the wrong length.
func (t *Table) checkArgs(keys []rowraft.Key, numBytes int, dt rowraft.DType) error {
	if dt.Size() == 0 {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: %s: want float32 or bfloat16", t.schema.Name, dt)
	}
	if want := len(keys) * t.index.dim * dt.Size(); numBytes != want {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"table %s: %d bytes of numbers for %d keys: want %d × dim %d × %d bytes = %d",
			t.schema.Name, numBytes, len(keys), len(keys), t.index.dim, dt.Size(), want)
	}
	return nil
}

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
	if err := t.checkArgs(keys, len(dst), dt); err != nil {
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
	var ahead chunks
	ahead.start(t, keys, t.index.stateAt, false)
	rowBytes := t.index.dim * dt.Size()
	for base := 0; ; {
		c, n := ahead.next(t, keys)
		if n == 0 {
			return ahead.err
		}
		for i, key := range keys[base : base+n] {
			out := dst[:rowBytes:rowBytes]
			dst = dst[rowBytes:]
			if t.index.read(c, i, key, out, dt, noVersion) == 0 {
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
// REQUIRES: no other writer uses the table at the same time (see the package's "Concurrency").
//
// Errors: CodeInvalidArgument and CodeWrongShard as in Pull, before anything changes;
// CodeOverloaded if the system has no memory. In that case an unknown part of the
// rows has changed: the replica must stop and restore its state.
func (t *Table) Update(keys []rowraft.Key, grads []byte, dt rowraft.DType, lr float32) error {
	return t.UpdateCounted(keys, grads, dt, lr, nil)
}

// UpdateCounted is Update for sums of gradients: counts[i] is how many pushes of keys[i] its gradient sums, at least 1.
// In a tracked table each of them counts as a push of its own, and the last one changes the row
// (docs/formats/streaming.md). Other tables ignore counts, and nil means 1.
func (t *Table) UpdateCounted(keys []rowraft.Key, grads []byte, dt rowraft.DType, lr float32, counts []byte) error {
	return t.change(keys, grads, dt, counts, false, func(w, state, g []float32) {
		t.rule.Update(w, state, g, lr)
	})
}

// Assign creates the rows of keys that have none, sets their weights to values,
// and gives them the next version of their slot. The optimizer state stays as it is, except
// where [optim.Rule.Assign] changes it. Everything else is as in Update.
func (t *Table) Assign(keys []rowraft.Key, values []byte, dt rowraft.DType) error {
	return t.change(keys, values, dt, nil, true, func(w, state, v []float32) { t.rule.Assign(w, state, v) })
}

// change calls do for each key with the weights and the state of its row and the numbers of
// the argument for that key. It rounds the weights to the storage type after do returns: see records.store.
func (t *Table) change(
	keys []rowraft.Key, arg []byte, dt rowraft.DType, counts []byte, assign bool, do func(w, state, arg []float32),
) error {
	if err := t.checkArgs(keys, len(arg), dt); err != nil {
		return err
	}
	if err := t.index.checkKeys(keys); err != nil { // before anything changes
		return err
	}
	t.beginChange()
	defer t.endChange()
	if t.index.tier != nil {
		if err := t.index.tier.load(keys); err != nil {
			return err
		}
	}
	if t.track != nil {
		return t.changeTracked(keys, arg, dt, counts, assign, do)
	}
	var ahead chunks
	ahead.start(t, keys, t.index.rowBytes(), true)
	rowBytes := t.index.dim * dt.Size()
	for base := 0; ; {
		c, n := ahead.next(t, keys)
		if n == 0 {
			return nil
		}
		for i, key := range keys[base : base+n] {
			values := wire.Floats(t.scratch, dt, arg[:rowBytes:rowBytes])
			arg = arg[rowBytes:]
			r, err := t.open(c, i, key)
			if err != nil {
				return err
			}
			w := wire.Floats(t.wide, t.index.storage, t.index.weights(r))
			do(w, t.index.state(r), values)
			t.index.store(r, &t.rule, w, assign)
			t.index.seal(c.slot[i], c.tag[i], r)
		}
		base += n
	}
}

// changeTracked is change for a tracked table. docs/formats/streaming.md specifies the order of its
// steps.
func (t *Table) changeTracked(
	keys []rowraft.Key, arg []byte, dt rowraft.DType, counts []byte, assign bool, do func(w, state, arg []float32),
) error {
	var c chunk
	rowBytes := t.index.dim * dt.Size()
	touched := t.index.rowBytes()
	for base := 0; base < len(keys); base += chunkKeys {
		chunkOf := keys[base:min(base+chunkKeys, len(keys))]
		t.index.lookup(&c, chunkOf, touched)
		t.snaps.prefetchSlots(&c, len(chunkOf))
		for i, key := range chunkOf {
			values := wire.Floats(t.scratch, dt, arg[:rowBytes:rowBytes])
			arg = arg[rowBytes:]
			pushes := 1
			if counts != nil {
				pushes = int(counts[base+i])
			}
			ok, err := t.mayPush(&c, i, key, assign)
			for ; !ok && err == nil && pushes > 1; pushes-- {
				ok, err = t.mayPush(&c, i, key, assign)
			}
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			r, err := t.open(&c, i, key)
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
			w := wire.Floats(t.wide, t.index.storage, t.index.weights(r))
			do(w, t.index.state(r), values)
			t.index.store(r, &t.rule, w, assign)
			t.index.seal(c.slot[i], c.tag[i], r)
		}
	}
	return nil
}

// mayPush reports whether keys[i] has a row or may get one. In the second case it makes room for it.
func (t *Table) mayPush(c *chunk, i int, key rowraft.Key, assign bool) (bool, error) {
	slot, tag := c.slot[i], c.tag[i]
	if _, ok := t.index.record(c, i, key); ok {
		return true, nil
	}
	if _, ok := t.index.find(slot, tag, key); ok { // an earlier key of the chunk created it
		return true, nil
	}
	if !assign {
		if ok, err := t.track.admit(slot, tag, key); !ok {
			return false, err
		}
	}
	t.track.forget(slot, tag, key)
	t.track.counters.admitted.Add(1)
	evicted, err := t.makeRoom(slot)
	if evicted { // records that lookup found may have been removed
		for j := i + 1; j < len(c.addr); j++ {
			c.addr[j] = unsafe.Pointer(&noRow)
		}
	}
	return true, err
}

// open prepares the record of keys[i] for a change and returns it. It subtracts the old hash
// from the digest, saves an image for each snapshot that needs one, and marks the record busy,
// so that readers wait until seal. It creates a missing row from the initializer.
func (t *Table) open(c *chunk, i int, key rowraft.Key) (record, error) {
	r, ok := t.index.record(c, i, key)
	if !ok {
		// An earlier key of the chunk may have created this row after the lookup.
		r, ok = t.index.find(c.slot[i], c.tag[i], key)
	}
	if ok {
		if err := t.snaps.saveImage(c.slot[i], c.tag[i], r); err != nil {
			return r, err
		}
		t.index.subtract(c.slot[i], c.tag[i], r)
		r.setBusy()
		return r, nil
	}
	t.snaps.prepareSlot(c.slot[i])
	r, err := t.insert(c.slot[i], c.tag[i], key)
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
