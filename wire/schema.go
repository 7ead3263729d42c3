package wire

import (
	"math"

	"github.com/rowraft/rowraft"
)

const (
	schemaFixed = 56

	// schemaExtension is the length of what follows the name of a schema that says
	// more than the fixed part can; schemaFormat, in byte 11, is 1 then, else 0.
	schemaExtension = 24
	schemaFormat    = 1
)

// CreateTableEntry returns the entry that makes a table known to a shard.
func CreateTableEntry(h EntryHeader, s *rowraft.Schema) []byte {
	h.Kind, h.Parts, h.Version = EntryCreateTable, 0, max(h.Version, SchemaVersion(s))
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+SchemaSize(s))
	PutEntryHeader(b, h)
	return AppendSchema(b, s)
}

// SchemaVersion is the oldest apply version that knows all of s.
func SchemaVersion(s *rowraft.Schema) uint16 {
	if s.Extended() {
		return 2
	}
	return PlainEntryVersion
}

// SchemaSize returns the encoded length of s, a multiple of 8.
func SchemaSize(s *rowraft.Schema) int {
	n := align8(schemaFixed + len(s.Name))
	if s.Extended() {
		n += schemaExtension
	}
	return n
}

// AppendSchema appends the encoding of s (docs/formats/entry.md), used in
// entries, snapshots and manifests.
func AppendSchema(dst []byte, s *rowraft.Schema) []byte {
	extended := s.Extended()
	format := byte(0)
	if extended {
		format = schemaFormat
	}
	dst = le.AppendUint64(dst, uint64(s.ID))
	dst = append(dst, byte(s.Kind), byte(s.Initializer.Kind), byte(s.Optimizer.Kind), format)
	dst = le.AppendUint32(dst, uint32(s.Dim))
	dst = le.AppendUint64(dst, s.Initializer.Seed)
	o := &s.Optimizer
	for _, f := range [...]float32{s.Initializer.A, s.Initializer.B, o.LR, o.InitialAccumulator, o.Epsilon, o.Beta1, o.Beta2} {
		dst = le.AppendUint32(dst, math.Float32bits(f))
	}
	dst = le.AppendUint32(dst, uint32(len(s.Name)))
	dst = append(dst, s.Name...)
	for pad := align8(schemaFixed+len(s.Name)) - schemaFixed - len(s.Name); pad > 0; pad-- {
		dst = append(dst, 0)
	}
	if !extended {
		return dst
	}
	storage := s.Normal().Storage
	dst = append(dst, byte(storage), byte(s.Admission.Kind), byte(s.Capacity.Evict), 0)
	dst = le.AppendUint32(dst, s.Admission.Count)
	dst = le.AppendUint32(dst, math.Float32bits(s.Admission.Probability))
	dst = le.AppendUint32(dst, s.Expire)
	return le.AppendUint64(dst, s.Capacity.Rows)
}

// ParseSchema reads a schema from the start of b and validates it.
//
// Errors: CodeCorrupt; CodeVersionTooNew if it says what this binary cannot know.
func ParseSchema(b []byte) (s rowraft.Schema, rest []byte, err error) {
	if len(b) < schemaFixed {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema ends after %d bytes, want at least %d", len(b), schemaFixed)
	}
	if b[11] > schemaFormat {
		return s, nil, rowraft.Errorf(rowraft.CodeVersionTooNew, "schema of format %d, this binary knows up to %d: upgrade it", b[11], schemaFormat)
	}
	f := func(i int) float32 { return math.Float32frombits(le.Uint32(b[24+4*i:])) }
	s = rowraft.Schema{
		ID:          rowraft.TableID(le.Uint64(b)),
		Kind:        rowraft.TableKind(b[8]),
		Dim:         int(le.Uint32(b[12:])),
		Initializer: rowraft.Initializer{Kind: rowraft.InitializerKind(b[9]), Seed: le.Uint64(b[16:]), A: f(0), B: f(1)},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.OptimizerKind(b[10]), LR: f(2), InitialAccumulator: f(3), Epsilon: f(4), Beta1: f(5), Beta2: f(6)},
	}
	extended := b[11] == schemaFormat
	n := uint64(le.Uint32(b[52:]))
	if n > 128 || schemaFixed+n > uint64(len(b)) {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema has a name of %d bytes, %d are left", n, len(b)-schemaFixed)
	}
	s.Name = string(b[schemaFixed : schemaFixed+n])
	end := align8(schemaFixed + int(n))
	size := end
	if extended {
		size += schemaExtension
	}
	if size > len(b) {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q ends early", s.Name)
	}
	for _, pad := range b[schemaFixed+n : end] {
		if pad != 0 {
			return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q has padding that is not 0", s.Name)
		}
	}
	if extended {
		if err := parseExtension(&s, b[end:size]); err != nil {
			return s, nil, err
		}
	}
	if err := s.Validate(); err != nil {
		return s, nil, rowraft.Errorf(rowraft.CodeCorrupt, "stored schema: %w", err)
	}
	return s, b[size:], nil
}

// parseExtension reads what follows the name.
func parseExtension(s *rowraft.Schema, b []byte) error {
	s.Storage = rowraft.DType(b[0])
	s.Admission = rowraft.Admission{
		Kind: rowraft.AdmissionKind(b[1]), Count: le.Uint32(b[4:]), Probability: math.Float32frombits(le.Uint32(b[8:])),
	}
	s.Expire = le.Uint32(b[12:])
	s.Capacity = rowraft.Capacity{Rows: le.Uint64(b[16:]), Evict: rowraft.EvictKind(b[2])}
	// Each schema has one encoding, so that equal ones are equal bytes.
	negativeZero := s.Admission.Probability == 0 && le.Uint32(b[8:]) != 0
	if b[3] != 0 || s.Storage == rowraft.Float32 || negativeZero || !s.Extended() {
		return rowraft.Errorf(rowraft.CodeCorrupt, "schema of table %q has an impossible extension", s.Name)
	}
	return nil
}
