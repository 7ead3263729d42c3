package shard

import (
	"bytes"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/wire"
)

// Validate returns the reason why payload must not enter the log as an op of this shard, or nil. It
// uses the tables of the present state, and so does Apply: Apply would refuse whatever Validate
// refuses.
//
// A payload is zero or more segments of different tables; a segment may have no rows. Validate
// takes time linear in the length of payload and holds no lock during that time. Safe for
// concurrent use.
//
// Errors: CodeTableNotFound; CodeWrongShard if a key's slot is not held here;
// CodeNotFound and CodeNotMember for the clock of a clocked push;
// CodeInvalidArgument for everything else: dim, dtype, flags, keys not strictly
// ascending, a repeated table, too many keys, numbers that are NaN or infinite.
func (m *Machine) Validate(op wire.Op, payload []byte) error {
	if op < wire.OpPush || op > wire.OpClocked {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "op %d: want push, assign, delete or clocked push", op)
	}
	if len(payload) > rowraft.MaxEntryBytes {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "payload of %d bytes: want at most %d in one part: split it",
			len(payload), rowraft.MaxEntryBytes)
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
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has two segments in one payload: merge them",
					t.schema.Name)
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

// CheckPart checks whether p should be logged: first its session, then its number, then
// Validate. duplicate means that the number was applied before: the server can respond
// at once, since what is applied is committed.
//
// Errors, in addition to those of Validate: CodeSessionExpired; CodeOverloaded if the
// number is too far above the client's floor; the code of the first refusal if
// the number was refused before.
func (m *Machine) CheckPart(p *wire.Part) (duplicate bool, err error) {
	m.mu.RLock()
	s, err := m.mu.check(p.Client, p.Incarnation, m.logTime.Load())
	var known bool
	if err == nil {
		known, err = lookup(s, p)
	}
	m.mu.RUnlock()
	if err != nil || known {
		return err == nil, err
	}
	return false, m.Validate(p.Op, p.Payload)
}

// CheckSession returns CodeSessionExpired unless (client, inc) has a session here now.
func (m *Machine) CheckSession(client rowraft.ClientID, inc rowraft.Incarnation) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, err := m.mu.check(client, inc, m.logTime.Load())
	return err
}

// CheckOpen returns the error with which Apply would refuse to open o at log time now, or nil.
//
// Errors: CodeOverloaded if the shard, or the client's owner, has the largest number of sessions
// and none can be evicted; CodeSessionExpired; CodeInvalidArgument.
func (m *Machine) CheckOpen(o *wire.Opening, now uint64) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, err := m.mu.mayOpen(o, max(now, m.logTime.Load()))
	return err
}

// SessionUse counts the sessions of a shard.
type SessionUse struct {
	All        int
	InUse      int // sessions that cannot be evicted
	OwnerInUse int // the largest number of these that one owner has
}

// SessionUse counts the sessions at log time now.
func (m *Machine) SessionUse(now uint64) (use SessionUse) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	use.All = len(m.mu.sessions)
	var owner []byte
	own := 0
	for _, s := range m.mu.sessions { // sorted, so the sessions of one owner are adjacent
		if !bytes.Equal(owner, s.Client[:len(s.Client)/2]) {
			owner, own = s.Client[:len(s.Client)/2], 0
		}
		if evictionClass(s, now) == inUse {
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
		return nil, rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s: segment flags %#x are not allowed in this request",
			t.schema.Name, seg.Flags)
	}
	return t, t.checkDim(seg)
}

func (t *table) checkDim(seg wire.Segment) error {
	if seg.Dim != t.schema.Dim {
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "table %s has dim %d, the request has %d",
			t.schema.Name, t.schema.Dim, seg.Dim)
	}
	return nil
}

// find returns the table with id. Its rows may change only under m.mu.
func (m *Machine) find(id rowraft.TableID) (*table, error) {
	if t := m.view.Load().table(id); t != nil {
		return t, nil
	}
	return nil, m.notFound(id)
}

func (m *Machine) notFound(id rowraft.TableID) error {
	return rowraft.Errorf(rowraft.CodeTableNotFound, "shard %d has no table %#x: create it first", m.shard, uint64(id))
}

// checkSlots refuses a key whose slot this shard does not hold.
func (m *Machine) checkSlots(t *table, body wire.Body) error {
	for i := range len(body.Keys) / 8 {
		key := body.Key(i)
		hash := clustermap.Mix64(uint64(t.schema.Kind.PlacementKey(key)) ^ t.seed)
		if slot := clustermap.SlotOfHash(hash, m.owned.count); !m.owned.has(slot) {
			return rowraft.Errorf(rowraft.CodeWrongShard, "table %s: key %d is in slot %d, which shard %d does not hold",
				t.schema.Name, key, slot, m.shard)
		}
	}
	return nil
}

func tooManyKeys(n int) error {
	return rowraft.Errorf(rowraft.CodeInvalidArgument, "%d keys: want at most %d in one request: split it",
		n, rowraft.MaxKeysPerPart)
}
