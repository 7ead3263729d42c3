package shard

import (
	"bytes"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// Validate reports why the log must not take payload as an op of this shard. It
// decides by the tables of the present state, and so does Apply: what is refused
// here would be refused there.
//
// A payload is any number of segments of different tables, none at all
// included; a segment may have no rows. It takes time in the length of payload
// and holds no lock over it. Safe for concurrent use.
//
// Errors: CodeTableNotFound; CodeWrongShard if a key's slot is not held here;
// CodeNotFound, CodeNotMember for the clock of a clocked push;
// CodeInvalidArgument for everything else: dim, dtype, flags, keys not strictly
// ascending, a table twice, too many keys, numbers that are NaN or infinite.
func (m *Machine) Validate(op wire.Op, payload []byte) error {
	if op < wire.OpPush || op > wire.OpClocked {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "op %d: want push, assign, delete or clocked push", op)
	}
	if len(payload) > rowraft.MaxEntryBytes {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "payload of %d bytes: want at most %d in one part, split it", len(payload), rowraft.MaxEntryBytes)
	}
	if op == wire.OpClocked {
		c, segments, err := wire.ParseClock(payload)
		if err != nil {
			return err
		}
		if err := m.checkClock(&c); err != nil {
			return err
		}
		op, payload = wire.OpPush, segments
	}
	var seen [16]rowraft.TableID
	tables := seen[:0]
	for keys := 0; len(payload) > 0; {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		t, err := m.checkSegment(op, seg)
		if err != nil {
			return err
		}
		for _, id := range tables {
			if id == seg.Table {
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s stands in two segments of one payload: merge them", t.schema.Name)
			}
		}
		tables = append(tables, seg.Table)
		if keys += seg.N; keys > rowraft.MaxKeysPerPart {
			return tooManyKeys(keys)
		}
		if err := wire.CheckKeys(seg.Table, body.Keys); err != nil {
			return err
		}
		if err := m.checkSlots(t, body); err != nil {
			return err
		}
		if err := wire.CheckFinite(seg, body.Values); err != nil {
			return err
		}
	}
	return nil
}

// CheckPart reports whether p is worth logging: its session, its number, then
// Validate. duplicate means that the number has been applied: the client can
// have its answer now, since what is applied is committed.
//
// Errors, besides those of Validate: CodeSessionExpired; CodeOverloaded if the
// number is too far above the client's floor; the code of the first refusal if
// the number was refused before.
func (m *Machine) CheckPart(p *wire.Part) (duplicate bool, err error) {
	m.mu.RLock()
	s, err := m.mu.check(p.Client, p.Incarnation, m.logTime.Load())
	var v verdict
	if err == nil {
		v, err = look(s, p)
	}
	m.mu.RUnlock()
	if err != nil || v == answered {
		return err == nil, err
	}
	return false, m.Validate(p.Op, p.Payload)
}

// CheckSession reports CodeSessionExpired unless (client, inc) may push here now.
func (m *Machine) CheckSession(client rowraft.ClientID, inc rowraft.Incarnation) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, err := m.mu.check(client, inc, m.logTime.Load())
	return err
}

// CheckOpen reports why the log must not take o at log time now: what is refused here
// would be refused by Apply.
//
// Errors: CodeOverloaded if the shard, or the client's owner, has as many sessions as it can
// have and none makes room; CodeSessionExpired; CodeInvalidArgument.
func (m *Machine) CheckOpen(o *wire.Opening, now uint64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, err := m.mu.mayOpen(o, max(now, m.logTime.Load()))
	return err
}

// SessionUse counts the sessions of a shard.
type SessionUse struct {
	All        int
	InUse      int // that would not make room for another one
	OwnerInUse int // of these, the most of one owner
}

// SessionUse counts the sessions at log time now.
func (m *Machine) SessionUse(now uint64) (use SessionUse) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	use.All = len(m.mu.sessions)
	var owner []byte
	own := 0
	for _, s := range m.mu.sessions { // those of one owner stand together
		if !bytes.Equal(owner, s.Client[:len(s.Client)/2]) {
			owner, own = s.Client[:len(s.Client)/2], 0
		}
		if roomClass(s, now) == inUse {
			use.InUse++
			own++
			use.OwnerInUse = max(use.OwnerInUse, own)
		}
	}
	return use
}

// checkSegment checks the fixed part of a segment that changes rows and returns
// its table.
func (m *Machine) checkSegment(op wire.Op, seg wire.Segment) (*table, error) {
	t, err := m.find(seg.Table)
	if err != nil {
		return nil, err
	}
	allowed, wanted := wire.FlagLR, uint8(0)
	switch op {
	case wire.OpAssign:
		allowed = 0
	case wire.OpDelete:
		allowed, wanted = wire.FlagNoValues, wire.FlagNoValues
	}
	if seg.Flags&^allowed != 0 || seg.Flags&wanted != wanted {
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: segment flags %#x do not belong in this request", t.schema.Name, seg.Flags)
	}
	return t, t.checkDim(seg)
}

func (t *table) checkDim(seg wire.Segment) error {
	if seg.Dim != t.schema.Dim {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has dim %d, the request has %d", t.schema.Name, t.schema.Dim, seg.Dim)
	}
	return nil
}

// find returns the table with id; its rows may be changed under m.mu only.
func (m *Machine) find(id rowraft.TableID) (*table, error) {
	if t := m.view.Load().table(id); t != nil {
		return t, nil
	}
	return nil, m.notFound(id)
}

func (m *Machine) notFound(id rowraft.TableID) error {
	return rowraft.Errorf(rowraft.CodeTableNotFound, "shard %d has no table %#x: create it first", m.shard, uint64(id))
}

// checkSlots reports a key whose slot this shard does not hold.
func (m *Machine) checkSlots(t *table, body wire.Body) error {
	for i := range len(body.Keys) / 8 {
		key := body.Key(i)
		hash := clustermap.Mix64(uint64(t.schema.Kind.PlacementKey(key)) ^ t.seed)
		if slot := clustermap.SlotOfHash(hash); !m.owned.has(slot) {
			return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: key %d is in slot %d, which shard %d does not hold", t.schema.Name, key, slot, m.shard)
		}
	}
	return nil
}

func tooManyKeys(n int) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%d keys: want at most %d in one request, split it", n, rowraft.MaxKeysPerPart)
}
