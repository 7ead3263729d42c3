package reference

import (
	"bytes"
	"hash/crc32"

	"github.com/rowraft/rowraft"
)

// Load reads a snapshot (docs/formats/snapshot.md) of a shard that holds slots (nil: all) of count (0: 4096). It makes
// all checks of the page, including the digest.
//
// Errors: CodeCorrupt, CodeVersionTooNew.
func Load(count rowraft.SlotCount, slots []rowraft.Slot, stream []byte) (*Machine, error) {
	l := &loader{all: stream, rest: stream}
	n, err := l.header(count, slots)
	if err != nil {
		return nil, err
	}
	if err := l.schemas(n.tables); err != nil {
		return nil, err
	}
	if err := l.sessions(n.sessions); err != nil {
		return nil, err
	}
	if err := l.over(n.over); err != nil {
		return nil, err
	}
	if err := l.jobs(n.jobs); err != nil {
		return nil, err
	}
	for {
		at := len(l.all) - len(l.rest)
		kind, body, err := l.chunk()
		if err != nil {
			return nil, err
		}
		switch kind {
		case 3:
			err = l.rows(body)
		case 5:
			err = l.candidates(body)
		case 4:
			return l.m, l.trailer(body, at)
		default:
			err = corrupt("snapshot: a chunk of another kind among the rows")
		}
		if err != nil {
			return nil, err
		}
	}
}

// counts is the number of items of each kind in the header.
type counts struct{ tables, sessions, over, jobs int }

// loader is a partly read snapshot.
type loader struct {
	all, rest []byte
	m         *Machine

	table      rowraft.TableID // of the last chunk of rows
	slot, part int
	chunks     uint64
	waiting    bool   // candidates of that slot may follow
	candidate  uint64 // how many there were
}

func sum32c(parts ...[]byte) uint32 {
	return crc32.Checksum(bytes.Join(parts, nil), crc32.MakeTable(crc32.Castagnoli))
}

func (l *loader) header(count rowraft.SlotCount, slots []rowraft.Slot) (n counts, err error) {
	h := l.rest
	switch {
	case len(h) < 64 || string(h[:8]) != "ROWRSNAP":
		return n, corrupt("snapshot: no header")
	case le.Uint16(h[8:]) > 1 || le.Uint16(h[10:]) > 1:
		return n, tooNew("snapshot of a later format or hash version")
	case le.Uint32(h[60:]) != sum32c(h[:60]), le.Uint16(h[8:]) == 0, le.Uint16(h[10:]) == 0, !zero(h[48:52]):
		return n, corrupt("snapshot: impossible header")
	}
	l.m = New(rowraft.ShardID(le.Uint32(h[12:])), count, slots)
	l.m.Applied = rowraft.Index(le.Uint64(h[16:]))
	l.m.LogTime = le.Uint64(h[24:])
	l.m.Epoch = rowraft.TableEpoch(le.Uint64(h[32:]))
	l.rest = h[64:]
	n = counts{int(le.Uint32(h[40:])), int(le.Uint32(h[44:])), int(le.Uint32(h[56:])), int(le.Uint32(h[52:]))}
	if n.jobs > maxJobs {
		return n, corrupt("snapshot: too many jobs")
	}
	return n, nil
}

func (l *loader) chunk() (kind byte, body []byte, err error) {
	if len(l.rest) < 16 {
		return 0, nil, corrupt("snapshot ends early")
	}
	head, size := l.rest[:16], le.Uint64(l.rest[8:])
	if size > 8<<20 || size > uint64(len(l.rest)-16) {
		return 0, nil, corrupt("snapshot: a chunk beyond the end, or too long")
	}
	body = l.rest[16 : 16+size]
	l.rest = l.rest[16+size:]
	if !zero(head[1:4]) || le.Uint32(head[4:]) != sum32c(head[:4], head[8:], body) {
		return 0, nil, corrupt("snapshot: the checksum of a chunk does not match")
	}
	return head[0], body, nil
}

// section passes all chunks of kind to read, which returns the number of items in a chunk; there must be
// want of them in total.
func (l *loader) section(kind byte, want int, read func(body []byte) (int, error)) error {
	for n, first := 0, true; first || n < want; first = false {
		k, body, err := l.chunk()
		if err != nil {
			return err
		}
		if k != kind || !first && len(body) == 0 {
			return corrupt("snapshot: a chunk is missing")
		}
		found, err := read(body)
		if err != nil {
			return err
		}
		if n += found; n > want || n < want && found == 0 && !first {
			return corrupt("snapshot: another number of tables or sessions")
		}
	}
	return nil
}

func (l *loader) schemas(want int) error {
	last, names := rowraft.TableID(0), make(map[string]bool)
	return l.section(1, want, func(b []byte) (n int, err error) {
		for ; len(b) > 0; n++ {
			var s rowraft.Schema
			if s, b, err = decodeSchema(b); err != nil {
				return n, err
			}
			if s.ID <= last || names[s.Name] || len(l.m.Tables) == maxTables {
				return n, corrupt("snapshot: an impossible table")
			}
			last, names[s.Name] = s.ID, true
			l.m.Tables[s.ID] = l.m.newTable(s)
		}
		return n, nil
	})
}

func (l *loader) sessions(want int) error {
	if want > maxSessions {
		return corrupt("snapshot: too many sessions")
	}
	var last rowraft.ClientID
	return l.section(2, want, func(b []byte) (n int, err error) {
		for ; len(b) > 0; n++ {
			if len(b) < 176 {
				return n, corrupt("snapshot: a session ends early")
			}
			client := rowraft.ClientID(b[:16])
			if len(l.m.Sessions) > 0 && bytes.Compare(client[:], last[:]) <= 0 {
				return n, corrupt("snapshot: sessions are not in order")
			}
			last = client
			refused := uint64(le.Uint32(b[40:]))
			if refused > window || uint64(len(b)) < 176+16*refused || !zero(b[44:48]) {
				return n, corrupt("snapshot: an impossible session")
			}
			s := decodeSession(b[:176])
			if l.m.Sessions[client] = s; !s.refuse(b[176 : 176+16*refused]) {
				return n, corrupt("snapshot: a session refused a number that it has not answered")
			}
			b = b[176+16*refused:]
		}
		return n, nil
	})
}

// over reads the ended sessions, if there are any.
func (l *loader) over(want int) error {
	if want == 0 {
		return nil
	}
	kind, body, err := l.chunk()
	if err != nil {
		return err
	}
	if kind != 7 || len(body) != 8+32*want || want > maxOver {
		return corrupt("snapshot: sessions that are over are missing")
	}
	l.m.OverFloor = rowraft.Index(le.Uint64(body))
	before := l.m.OverFloor
	if before > 0 && want < maxOver {
		return corrupt("snapshot: a floor without as many sessions that are over as there can be")
	}
	for b := body[8:]; len(b) > 0; b = b[32:] {
		o := Over{rowraft.ClientID(b[:16]), rowraft.Incarnation(le.Uint64(b[16:])), rowraft.Index(le.Uint64(b[24:]))}
		if o.Incarnation == 0 || o.Index <= before || o.Index > l.m.Applied {
			return corrupt("snapshot: a session that cannot be over")
		}
		before = o.Index
		l.m.Over = append(l.m.Over, o)
	}
	return nil
}

// decodeSession reads the fixed part of a session.
func decodeSession(b []byte) *Session {
	s := &Session{
		Incarnation: rowraft.Incarnation(le.Uint64(b[16:])), Floor: rowraft.Seq(le.Uint64(b[24:])),
		LastUsed: le.Uint64(b[32:]), Answered: map[rowraft.Seq]rowraft.Code{},
	}
	for n := s.Floor + 1; n <= s.Floor+window && n > 0; n++ {
		bit := n % window
		if word := le.Uint64(b[48+8*(bit/64):]); word>>(bit%64)&1 == 1 {
			s.Answered[n] = rowraft.CodeUnknown
		}
	}
	return s
}

// refuse reads the refused numbers of a session and reports whether they are possible.
func (s *Session) refuse(b []byte) bool {
	last := rowraft.Seq(0)
	for ; len(b) > 0; b = b[16:] {
		n, code := rowraft.Seq(le.Uint64(b)), le.Uint64(b[8:])
		if _, ok := s.Answered[n]; !ok || n <= last || code > 255 {
			return false
		}
		last, s.Answered[n] = n, rowraft.Code(code)
	}
	return true
}

func (l *loader) rows(b []byte) error {
	head := 32
	if len(b) > 11 && b[10] == 2 { // rows were removed
		head = 40
	}
	if len(b) < head {
		return corrupt("snapshot: a chunk of rows ends early")
	}
	id, slot, part := rowraft.TableID(le.Uint64(b)), int(le.Uint16(b[8:])), int(le.Uint32(b[12:]))
	counter, n, size := le.Uint64(b[16:]), int(le.Uint32(b[24:])), int(le.Uint32(b[28:]))
	t := l.m.Tables[id]
	if t == nil || b[10] != 0 && b[10] != 2 || b[11] != 0 || size != recordSize(&t.Schema) || len(b)-head != n*size {
		return corrupt("snapshot: impossible rows")
	}
	if !l.m.owns(rowraft.Slot(slot)) {
		return rowraft.Errorf(rowraft.CodeWrongShard, "snapshot: rows of slot %d", slot)
	}
	next := l.chunks == 0 || id > l.table || id == l.table && slot > l.slot
	removed := uint64(0)
	if head == 40 {
		if removed = le.Uint64(b[32:]); removed == 0 {
			return corrupt("snapshot: a removal at 0")
		}
	}
	same := l.chunks > 0 && id == l.table && slot == l.slot && counter == t.Counters[rowraft.Slot(slot)] &&
		removed == t.Removed[rowraft.Slot(slot)]
	if part == 0 && !next || part > 0 && (!same || !l.waiting || part != l.part+1 || n == 0) {
		return corrupt("snapshot: rows are not in order")
	}
	l.table, l.slot, l.part, l.waiting = id, slot, part, true
	l.chunks++
	t.Counters[rowraft.Slot(slot)] = counter
	if removed > counter {
		return corrupt("snapshot: a removal that no counter tells of")
	}
	if removed > 0 {
		t.Removed[rowraft.Slot(slot)] = removed
	}
	for rec := b[head:]; len(rec) > 0; rec = rec[size:] {
		key, r := parseRecord(&t.Schema, rec[:size])
		if r == nil || int(t.slotOf(key)) != slot || t.Rows[key] != nil || r.Version < 1 || r.Version > counter {
			return corrupt("snapshot: a row that cannot be here")
		}
		t.Rows[key] = r
		l.m.sum = l.m.sum.plus(r.hash(key))
	}
	return nil
}

// candidates reads the candidates of the slot whose rows came last.
func (l *loader) candidates(b []byte) error {
	if len(b) <= 16 || !l.waiting || rowraft.TableID(le.Uint64(b)) != l.table || int(le.Uint16(b[8:])) != l.slot ||
		!zero(b[10:12]) || len(b)-16 != 16*int(le.Uint32(b[12:])) {
		return corrupt("snapshot: impossible candidates")
	}
	l.waiting = false
	l.candidate += uint64(le.Uint32(b[12:]))
	if l.m.addCandidates(l.m.Tables[l.table], rowraft.Slot(l.slot), b[16:]) != rowraft.CodeUnknown {
		return corrupt("snapshot: candidates that cannot be here")
	}
	return nil
}

func (l *loader) trailer(b []byte, at int) error {
	if len(b) != 48 || len(l.rest) != 0 {
		return corrupt("snapshot: an impossible end")
	}
	sum, rows := l.m.Digest()
	switch {
	case le.Uint64(b) != rows, le.Uint64(b[8:]) != l.chunks, le.Uint64(b[16:]) != uint64(at),
		le.Uint64(b[24:]) != l.candidate:
		return corrupt("snapshot: the trailer counts otherwise")
	case [16]byte(b[32:]) != sum:
		return corrupt("snapshot: the digest of its rows is another")
	}
	return nil
}
