package reference

import (
	"bytes"
	"math"

	"github.com/rowraft/rowraft"
)

// Kinds of entries and ops of parts, from docs/formats/entry.md.
const (
	kindParts       = 1
	kindOpenSession = 2
	kindCreateTable = 3
	kindDropTable   = 10

	kindCloseSession = 14

	opPush   = 1
	opAssign = 2
	opDelete = 3
	opSum    = 5
)

// entry is a decoded log entry; its kind determines which fields are set.
type entry struct {
	kind    byte
	logTime uint64
	epoch   rowraft.TableEpoch

	parts       []part
	client      rowraft.ClientID
	incarnation rowraft.Incarnation
	ticket      rowraft.Index
	schema      rowraft.Schema
	dropped     rowraft.TableID
	restore     *restore
	proof       *proof
	sweep       *sweep
	membership  *membership
	step        *step
}

type part struct {
	client      rowraft.ClientID
	incarnation rowraft.Incarnation
	seq, floor  rowraft.Seq
	op          byte
	payload     []byte

	contributors []part // of a sum, without op and payload
}

func corrupt(what string) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, "%s", what)
}

func tooNew(what string) error {
	return rowraft.Errorf(rowraft.CodeVersionTooNew, "%s", what)
}

// decodeEntry reads a whole entry; its errors stop a replica.
func decodeEntry(b []byte) (*entry, error) {
	if len(b) < 32 || b[0] != 'R' || b[1] != 1 {
		return nil, corrupt("no entry header")
	}
	version := le.Uint16(b[4:])
	if version > 1 {
		return nil, tooNew("entry of a later version")
	}
	e := &entry{kind: b[2], logTime: le.Uint64(b[8:]), epoch: rowraft.TableEpoch(le.Uint64(b[16:]))}
	parts := le.Uint32(b[24:])
	if version == 0 || !zero(b[3:4]) || !zero(b[6:8]) || !zero(b[28:32]) {
		return nil, corrupt("entry header with impossible fields")
	}
	if e.kind < kindParts || e.kind > kindCloseSession {
		return nil, tooNew("entry of an unknown kind")
	}
	if e.kind != kindParts && parts != 0 {
		return nil, corrupt("parts where none belong")
	}
	body, err := b[32:], error(nil)
	switch e.kind {
	case kindParts:
		err = e.decodeParts(parts, body)
	case kindOpenSession:
		if len(body) != 32 {
			return nil, corrupt("open session of another length")
		}
		e.client, e.incarnation = rowraft.ClientID(body[:16]), rowraft.Incarnation(le.Uint64(body[16:]))
		e.ticket = rowraft.Index(le.Uint64(body[24:]))
	case kindCloseSession:
		if len(body) != 24 {
			return nil, corrupt("close session of another length")
		}
		e.client, e.incarnation = rowraft.ClientID(body[:16]), rowraft.Incarnation(le.Uint64(body[16:]))
	case kindCreateTable:
		var rest []byte
		if e.schema, rest, err = decodeSchema(body); err == nil && len(rest) != 0 {
			err = corrupt("bytes follow a schema")
		}
	case kindDropTable:
		if len(body) != 8 || zero(body) {
			return nil, corrupt("drop of no table")
		}
		e.dropped = rowraft.TableID(le.Uint64(body))
	case kindProof:
		e.proof, err = decodeProof(body)
	case kindSweep:
		e.sweep, err = decodeSweep(body)
	case kindMembership:
		e.membership, err = decodeMembership(body)
	case kindStep:
		e.step, err = decodeStep(body)
	default:
		e.restore, err = decodeRestore(e.kind, body)
	}
	return e, err
}

func (e *entry) decodeParts(n uint32, b []byte) error {
	for range n {
		if len(b) < 48 {
			return corrupt("entry ends in the header of a part")
		}
		p := part{
			client: rowraft.ClientID(b[:16]), incarnation: rowraft.Incarnation(le.Uint64(b[16:])),
			seq: rowraft.Seq(le.Uint64(b[24:])), floor: rowraft.Seq(le.Uint64(b[32:])), op: b[40],
		}
		length := uint64(le.Uint32(b[44:]))
		switch {
		case p.op < opPush || p.op > opSum, !zero(b[41:44]), length%8 != 0, length > uint64(len(b)-48):
			return corrupt("impossible part")
		}
		p.payload = b[48 : 48+length]
		b = b[48+length:]
		if p.op == opSum {
			if err := p.decodeContributors(); err != nil {
				return err
			}
		}
		e.parts = append(e.parts, p)
	}
	if len(b) != 0 {
		return corrupt("bytes follow the last part")
	}
	return nil
}

// decodeContributors takes the list of contributors off the payload of a sum.
func (p *part) decodeContributors() error {
	n := uint64(p.seq)
	if p.client != (rowraft.ClientID{}) || p.incarnation != 0 || p.floor != 0 || n < 2 || n > 255 ||
		40*n > uint64(len(p.payload)) {
		return corrupt("impossible sum")
	}
	for i := range n {
		b := p.payload[40*i:]
		c := part{
			client: rowraft.ClientID(b[:16]), incarnation: rowraft.Incarnation(le.Uint64(b[16:])),
			seq: rowraft.Seq(le.Uint64(b[24:])), floor: rowraft.Seq(le.Uint64(b[32:])),
		}
		if i > 0 && bytes.Compare(p.contributors[i-1].client[:], c.client[:]) >= 0 {
			return corrupt("contributors that do not ascend")
		}
		p.contributors = append(p.contributors, c)
	}
	p.payload = p.payload[40*n:]
	return nil
}

// decodeSchema reads one schema from the start of b.
func decodeSchema(b []byte) (s rowraft.Schema, rest []byte, err error) {
	if len(b) < 64 {
		return s, nil, corrupt("schema ends early")
	}
	s.ID = rowraft.TableID(le.Uint64(b))
	s.Kind = rowraft.TableKind(b[8])
	s.Dim = int(le.Uint32(b[12:]))
	s.Initializer = rowraft.Initializer{Kind: rowraft.InitializerKind(b[9]), Seed: le.Uint64(b[16:]),
		NameHash: le.Uint64(b[24:]), A: float(b[32:]), B: float(b[36:])}
	s.Optimizer = rowraft.Optimizer{
		Kind: rowraft.OptimizerKind(b[10]), LR: float(b[40:]), InitialAccumulator: float(b[44:]),
		Epsilon: float(b[48:]), Beta1: float(b[52:]), Beta2: float(b[56:]),
	}
	extension := b[11]
	if extension > 3 {
		return s, nil, corrupt("schema with a longer extension")
	}
	length := uint64(le.Uint32(b[60:]))
	padded := (64 + length + 7) / 8 * 8
	if length < 1 || length > 128 || padded > uint64(len(b)) || !zero(b[64+length:padded]) {
		return s, nil, corrupt("impossible schema")
	}
	s.Name = string(b[64 : 64+length])
	rest = b[padded:]
	if size := []int{0, 24, 48, 56}[extension]; extension > 0 {
		if len(rest) < size || rest[3] > 1 || rest[0] == 1 || extension == 1 && zero(rest[:24]) ||
			extension == 2 && s.Optimizer.Kind < 4 && zero(rest[24:48]) || extension == 3 && zero(rest[48:56]) {
			return s, nil, corrupt("impossible extension of a schema")
		}
		s.Storage = rowraft.DType(rest[0])
		s.Admission = rowraft.Admission{Kind: rowraft.AdmissionKind(rest[1]), Count: le.Uint32(rest[4:]),
			Probability: float(rest[8:])}
		s.Capacity = rowraft.Capacity{Rows: le.Uint64(rest[16:]), Evict: rowraft.EvictKind(rest[2])}
		s.Expire = le.Uint32(rest[12:])
		s.SumPushes = rest[3] == 1
		if s.Admission.Probability == 0 && !zero(rest[8:12]) { // −0
			return s, nil, corrupt("impossible extension of a schema")
		}
		if extension >= 2 {
			for i, f := range []*float32{&s.Optimizer.Momentum, &s.Optimizer.WeightDecay, &s.Optimizer.Bound, &s.Optimizer.L1,
				&s.Optimizer.L2, &s.Optimizer.Beta} {
				if *f = float(rest[24+4*i:]); *f == 0 && !zero(rest[24+4*i:28+4*i]) {
					return s, nil, corrupt("impossible extension of a schema")
				}
			}
		}
		if extension == 3 {
			s.Memory = le.Uint64(rest[48:])
		}
		rest = rest[size:]
	}
	if extension < 2 && s.Optimizer.Kind > 3 {
		return s, nil, corrupt("optimizer without its extension")
	}
	if err := s.Validate(); err != nil {
		return s, nil, corrupt(err.Error())
	}
	return s, rest, nil
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

func float(b []byte) float32 { return math.Float32frombits(le.Uint32(b)) }

// segment is one segment of a push or assign.
type segment struct {
	table *Table
	hasLR bool
	lr    float32
	keys  []rowraft.Key
	rows  [][]float32 // one row per key

	counts []int // of a sum for a tracked table: how many pushes each row sums
}

const (
	flagLR       = 1
	flagNoValues = 2
	flagNoKeys   = 4
	flagPresence = 8
	flagCounts   = 128
)

// sums reports whether pushes of s may be summed.
func sums(s *rowraft.Schema) bool {
	o := s.Optimizer
	linear := o.Kind == rowraft.Add || o.Kind == rowraft.SGD && o.WeightDecay == 0
	return linear && o.Bound == 0 || s.SumPushes
}

// checkPayload decodes the payload of a push or an assign. A code other than CodeUnknown refuses it. The
// order of the checks is that of docs/formats/payload.md.
func (m *Machine) checkPayload(op byte, b []byte) ([]segment, rowraft.Code) {
	const ok, bad = rowraft.CodeUnknown, rowraft.CodeInvalidArgument
	if op != opSum && len(b) > maxPayload {
		return nil, bad
	}
	var out []segment
	total := uint64(0)
	seen := make(map[rowraft.TableID]bool)
	for len(b) > 0 {
		if len(b) < 24 {
			return nil, bad
		}
		id, n, dim := rowraft.TableID(le.Uint64(b)), uint64(le.Uint32(b[8:])), uint64(le.Uint16(b[12:]))
		dtype, flags, lr := b[14], b[15], float(b[16:])
		size := map[byte]uint64{1: 4, 2: 2}[dtype]
		hasLR := flags&flagLR != 0
		if size == 0 || flags&0x70 != 0 || dim < 1 || dim > maxDim || n > maxRows || !zero(b[20:24]) {
			return nil, bad
		}
		if !hasLR && lr != 0 || hasLR && (lr < 0 || !finite(lr)) {
			return nil, bad
		}
		keysAt := uint64(24)
		presenceAt, valuesAt := keysAt+8*n, keysAt+8*n
		if flags&flagNoKeys != 0 {
			presenceAt, valuesAt = keysAt, keysAt
		}
		if flags&flagPresence != 0 {
			valuesAt = presenceAt + (n+63)/64*8
		}
		end := valuesAt + n*dim*size
		if flags&flagNoValues != 0 {
			end = valuesAt
		}
		countsAt := end
		if flags&flagCounts != 0 {
			end += n
		}
		padded := (end + 7) / 8 * 8
		if padded > uint64(len(b)) || !zero(b[end:padded]) {
			return nil, bad
		}

		t := m.Tables[id]
		if t == nil {
			return nil, rowraft.CodeTableNotFound
		}
		total += n
		wanted := byte(0)
		switch {
		case op == opDelete:
			wanted = flagNoValues
		case (op == opPush || op == opSum) && hasLR:
			wanted = flagLR
		}
		if op == opSum && tracked(&t.Schema) {
			wanted |= flagCounts
		}
		if op == opSum && !sums(&t.Schema) {
			return nil, bad
		}
		if flags != wanted || dim != uint64(t.Schema.Dim) || seen[id] || total > maxRows {
			return nil, bad
		}
		seen[id] = true
		seg := segment{table: t, hasLR: hasLR, lr: lr}
		for i := range n {
			seg.keys = append(seg.keys, rowraft.Key(le.Uint64(b[keysAt+8*i:])))
			if i > 0 && seg.keys[i] <= seg.keys[i-1] {
				return nil, bad
			}
		}
		for _, k := range seg.keys {
			if !m.owns(t.slotOf(k)) {
				return nil, rowraft.CodeWrongShard
			}
		}
		for i := range n {
			if op == opDelete {
				break
			}
			row := make([]float32, dim)
			for j := range row {
				at := b[valuesAt+(i*dim+uint64(j))*size:]
				if dtype == 1 {
					row[j] = float(at)
				} else {
					row[j] = math.Float32frombits(uint32(le.Uint16(at)) << 16)
				}
				if !finite(row[j]) {
					return nil, bad
				}
			}
			seg.rows = append(seg.rows, row)
			if flags&flagCounts != 0 {
				seg.counts = append(seg.counts, int(b[countsAt+i]))
			}
		}
		out = append(out, seg)
		b = b[padded:]
	}
	return out, ok
}

func finite(v float32) bool {
	return !math.IsNaN(float64(v)) && !math.IsInf(float64(v), 0)
}
