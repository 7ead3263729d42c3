package shard

import (
	"github.com/rowraft/rowraft"
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
		if err := m.Jobs.checkClock(&c); err != nil {
			return err
		}
		op, payload = wire.OpPush, segments
	}
	return m.validateSegments(op, payload)
}

// validateSegments is Validate for the segments of a payload, also for those of a wire.OpSum.
func (d *Reads) validateSegments(op wire.Op, payload []byte) error {
	var seen [16]rowraft.TableID
	tables := seen[:0]
	for keys := 0; len(payload) > 0; {
		seg, body, rest, err := wire.ParseSegment(payload)
		if err != nil {
			return err
		}
		payload = rest
		t, err := d.checkSegment(op, seg)
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
		if err := d.checkSlots(t, body); err != nil {
			return err
		}
		if err := wire.CheckFinite(seg, body.Values); err != nil {
			return err
		}
	}
	return nil
}

// validateSum returns why apply must not apply the segments of the sum p, or nil.
func (d *Reads) validateSum(p *wire.Part, segments []byte) error {
	if err := d.validateSegments(wire.OpSum, segments); err != nil {
		return err
	}
	for len(segments) > 0 {
		_, body, rest, err := wire.ParseSegment(segments)
		if err != nil {
			return err
		}
		for _, n := range body.Counts {
			if n == 0 || int(n) > int(p.Seq) {
				return rowraft.Errorf(rowraft.CodeInvalidArgument, "a row sums %d of %d pushes", n, p.Seq)
			}
		}
		segments = rest
	}
	return nil
}

// CheckPart checks whether p should be logged: first its session, then its number, then
// Validate and CheckRoom. duplicate means that the number was applied before: the server can respond
// at once, since what is applied is committed.
//
// Errors, in addition to those of Validate and CheckRoom: CodeSessionExpired; CodeOverloaded if the
// number is too far above the client's floor; the code of the first refusal if
// the number was refused before.
func (m *Machine) CheckPart(p *wire.Part) (duplicate bool, err error) {
	known, err := m.Sessions.lookup(p)
	if err != nil || known {
		return err == nil, err
	}
	if err := m.Validate(p.Op, p.Payload); err != nil {
		return false, err
	}
	return false, m.CheckRoom(p.Op, p.Payload)
}
