package wire

import (
	"math"

	"github.com/rowraft/rowraft"
)

const (
	schemaFixed = 64

	// maxExtension is the longest extension, as byte 11 names it.
	maxExtension = 3
)

// schemaExtension is the length of what follows the name, by extension: most schemas
// need none, and are shorter for it.
var schemaExtension = [maxExtension + 1]int{0, 24, 48, 56}

// CreateTableEntry returns the entry that creates a table in a shard.
func CreateTableEntry(h EntryHeader, s *rowraft.Schema) []byte {
	h.Kind, h.Parts = EntryCreateTable, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+SchemaSize(s))
	PutEntryHeader(b, h)
	return AppendSchema(b, s)
}

// SchemaSize returns the encoded length of s, a multiple of 8.
func SchemaSize(s *rowraft.Schema) int {
	return align8(schemaFixed+len(s.Name)) + schemaExtension[s.Extension()]
}

// AppendSchema appends the encoding of s (docs/formats/entry.md), used in
// entries, snapshots and manifests.
func AppendSchema(dst []byte, s *rowraft.Schema) []byte {
	extension := s.Extension()
	dst = le.AppendUint64(dst, uint64(s.ID))
	dst = append(dst, byte(s.Kind), byte(s.Initializer.Kind), byte(s.Optimizer.Kind), byte(extension))
	dst = le.AppendUint32(dst, uint32(s.Dim))
	dst = le.AppendUint64(dst, s.Initializer.Seed)
	dst = le.AppendUint64(dst, s.Initializer.NameHash)
	o := &s.Optimizer
	for _, f := range [...]float32{s.Initializer.A, s.Initializer.B, o.LR, o.InitialAccumulator, o.Epsilon, o.Beta1,
		o.Beta2} {
		dst = le.AppendUint32(dst, math.Float32bits(f))
	}
	dst = le.AppendUint32(dst, uint32(len(s.Name)))
	dst = append(dst, s.Name...)
	for pad := align8(schemaFixed+len(s.Name)) - schemaFixed - len(s.Name); pad > 0; pad-- {
		dst = append(dst, 0)
	}
	if extension == 0 {
		return dst
	}
	storage := s.Normal().Storage
	sums := byte(0)
	if s.SumPushes {
		sums = 1
	}
	dst = append(dst, byte(storage), byte(s.Admission.Kind), byte(s.Capacity.Evict), sums)
	dst = le.AppendUint32(dst, s.Admission.Count)
	dst = appendPositive(dst, s.Admission.Probability)
	dst = le.AppendUint32(dst, s.Expire)
	dst = le.AppendUint64(dst, s.Capacity.Rows)
	if extension == 1 {
		return dst
	}
	for _, f := range laterConstants(o) {
		dst = appendPositive(dst, *f)
	}
	if extension == 2 {
		return dst
	}
	return le.AppendUint64(dst, s.Memory)
}

// laterConstants are the fields of extension 2, in their order.
func laterConstants(o *rowraft.Optimizer) [6]*float32 {
	return [...]*float32{&o.Momentum, &o.WeightDecay, &o.Bound, &o.L1, &o.L2, &o.Beta}
}

// appendPositive appends f. It appends -0 as +0: -0 equals a missing value, and equal schemas must have
// equal bytes.
func appendPositive(dst []byte, f float32) []byte {
	if f == 0 {
		f = 0
	}
	return le.AppendUint32(dst, math.Float32bits(f))
}

// ParseSchema reads a schema from the start of b and validates it.
//
// Errors: CodeCorrupt.
func ParseSchema(b []byte) (s rowraft.Schema, rest []byte, err error) {
	if len(b) < schemaFixed {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema ends after %d bytes, want at least %d",
			len(b), schemaFixed)
	}
	if b[11] > maxExtension {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema has extension %d, want at most %d", b[11], maxExtension)
	}
	f := func(i int) float32 { return math.Float32frombits(le.Uint32(b[32+4*i:])) }
	s = rowraft.Schema{
		ID:   rowraft.TableID(le.Uint64(b)),
		Kind: rowraft.TableKind(b[8]),
		Dim:  int(le.Uint32(b[12:])),
		Initializer: rowraft.Initializer{Kind: rowraft.InitializerKind(b[9]), Seed: le.Uint64(b[16:]),
			NameHash: le.Uint64(b[24:]), A: f(0), B: f(1)},
		Optimizer: rowraft.Optimizer{Kind: rowraft.OptimizerKind(b[10]), LR: f(2), InitialAccumulator: f(3),
			Epsilon: f(4), Beta1: f(5), Beta2: f(6)},
	}
	extension := int(b[11])
	n := uint64(le.Uint32(b[60:]))
	if n > 128 || schemaFixed+n > uint64(len(b)) {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt,
			"schema has a name of %d bytes: want at most 128, and %d bytes are left",
			n, len(b)-schemaFixed)
	}
	s.Name = string(b[schemaFixed : schemaFixed+n])
	end := align8(schemaFixed + int(n))
	size := end + schemaExtension[extension]
	if size > len(b) {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q ends early", s.Name)
	}
	for _, pad := range b[schemaFixed+n : end] {
		if pad != 0 {
			return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q has padding that is not 0", s.Name)
		}
	}
	if extension > 0 {
		if err := parseExtension(&s, b[end:size]); err != nil {
			return s, nil, err
		}
	}
	if s.Extension() != extension { // each schema has one encoding, so that equal ones are equal bytes
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q has extension %d: want %d",
			s.Name, extension, s.Extension())
	}
	if err := s.Validate(); err != nil {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "stored schema: %w", err)
	}
	return s, b[size:], nil
}

// parseExtension reads what follows the name.
func parseExtension(s *rowraft.Schema, b []byte) error {
	sums := b[3]
	s.SumPushes = sums == 1
	s.Storage = rowraft.DType(b[0])
	s.Admission = rowraft.Admission{
		Kind: rowraft.AdmissionKind(b[1]), Count: le.Uint32(b[4:]), Probability: math.Float32frombits(le.Uint32(b[8:])),
	}
	s.Expire = le.Uint32(b[12:])
	s.Capacity = rowraft.Capacity{Rows: le.Uint64(b[16:]), Evict: rowraft.EvictKind(b[2])}
	negativeZero := s.Admission.Probability == 0 && le.Uint32(b[8:]) != 0
	if b = b[schemaExtension[1]:]; len(b) > 0 {
		for i, f := range laterConstants(&s.Optimizer) {
			bits := le.Uint32(b[4*i:])
			*f = math.Float32frombits(bits)
			negativeZero = negativeZero || *f == 0 && bits != 0
		}
		if b = b[24:]; len(b) > 0 {
			s.Memory = le.Uint64(b)
		}
	}
	if sums > 1 || s.Storage == rowraft.Float32 || negativeZero {
		return rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q has an impossible extension", s.Name)
	}
	return nil
}
