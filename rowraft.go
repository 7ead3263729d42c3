package rowraft

import (
	"fmt"
	"regexp"
)

// Key identifies a row within a table. All 64-bit values are valid keys.
type Key uint64

// TableID names a table. The low 48 bits are the random, non-zero uid that the table
// is created with. They are part of the key hash, so they travel with the schema. The
// high 16 bits are the number of the restore that restored this table alone, or 0: a
// restored table is another table with the same places for its rows. An id is never
// reused.
type TableID uint64

const originBits = 48

// Origin returns the uid that the table was created with.
func (t TableID) Origin() TableID { return t & (1<<originBits - 1) }

// Restore returns the number of the restore that brought this table alone, or 0.
func (t TableID) Restore() uint16 { return uint16(t >> originBits) }

// RestoredBy returns the id of the table after restore n.
func (t TableID) RestoredBy(n uint16) TableID { return t.Origin() | TableID(n)<<originBits }

// ShardID numbers the shards of a cluster from 0.
type ShardID uint32

// Slot numbers the slots of a cluster from 0. A slot is a fixed share of the keys.
type Slot uint32

// SlotCount is the number of slots of a cluster: a power of two from DefaultSlots to MaxSlots. It is chosen when the
// cluster forms and never changes. Slots nest (docs/formats/hash.md).
type SlotCount uint32

const (
	DefaultSlots = 4096    // also the smallest SlotCount
	MaxSlots     = 1 << 16 // the largest: formats have 16 bits for a slot
)

// Check returns an error if a cluster cannot have n slots. Errors: CodeInvalidArgument.
func (n SlotCount) Check() error {
	if n < DefaultSlots || n > MaxSlots || n&(n-1) != 0 {
		return Errorf(CodeInvalidArgument, "%d slots: want a power of two from %d to %d", n, DefaultSlots, MaxSlots)
	}
	return nil
}

// ClusterID, NodeID and ReplicaID are UUIDs in their canonical text form. They
// are born with a data directory and never reused.
type (
	ClusterID string
	NodeID    string
	ReplicaID string
)

// Term and Index are those of the Raft paper.
type (
	Term  uint64
	Index uint64
)

// MapVersion counts the changes of the cluster map. 0 means unknown.
type MapVersion uint64

// FormatVersion is a version of all formats of a cluster (package wire lists them).
// 0 means unknown.
type FormatVersion uint16

// ClientID names one pushing client; random, 128 bits. Incarnation is issued by
// the scheduler: of two sessions of one client the higher incarnation fences
// the lower.
type (
	ClientID    [16]byte
	Incarnation uint64
)

// Seq numbers the push parts of one session on one shard, densely from 1.
type Seq uint64

// TableEpoch starts at 1 and grows when a table set is restored from a
// checkpoint; sessions and read tokens of older epochs are refused.
type TableEpoch uint64

// DType is the type of numbers on the wire.
type DType uint8

const (
	Float32  DType = 1 // 4 bytes, IEEE 754, little-endian
	BFloat16 DType = 2 // 2 bytes, upper half of a Float32, rounded to nearest even
)

// Size returns the bytes of one number, or 0 if d is unknown.
func (d DType) Size() int {
	switch d {
	case Float32:
		return 4
	case BFloat16:
		return 2
	}
	return 0
}

func (d DType) String() string {
	switch d {
	case Float32:
		return "float32"
	case BFloat16:
		return "bfloat16"
	}
	return fmt.Sprintf("dtype(%d)", uint8(d))
}

// ParseDType returns the type that String names.
func ParseDType(name string) (DType, error) {
	for _, d := range []DType{Float32, BFloat16} {
		if d.String() == name {
			return d, nil
		}
	}
	return 0, Errorf(CodeInvalidArgument, "%q: want %s or %s", name, Float32, BFloat16)
}

// MaxDim is the largest number of weights in a row.
const MaxDim = 4096

// Limits of one request part; a client splits what is larger.
const (
	TargetEntryBytes = 512 << 10 // what a log entry is packed up to
	MaxEntryBytes    = 4 << 20   // hard limit of a log entry and of a push part
	MaxKeysPerPart   = 256 << 10 // keys in one part or one pull of a shard
)

// TableKind says what the keys of a table mean.
type TableKind uint8

const (
	// Sparse tables hold embedding rows; any key may exist.
	Sparse TableKind = 1
	// Dense tables hold tensors cut into rows: a key is DenseKey(tensor, row), and
	// all rows of one tensor live in one slot.
	Dense TableKind = 2
)

func (k TableKind) String() string {
	switch k {
	case Sparse:
		return "sparse"
	case Dense:
		return "dense"
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// denseRowBits is the part of a dense key that counts rows within a tensor.
const denseRowBits = 40

// DenseKey is the key of row number row (< 2^40) of a tensor (< 2^24).
func DenseKey(tensor uint32, row uint64) Key {
	return Key(uint64(tensor)<<denseRowBits | row)
}

// PlacementKey returns the key whose hash decides the slot of key: key itself
// in a sparse table, the first row of its tensor in a dense one.
func (k TableKind) PlacementKey(key Key) Key {
	if k == Dense {
		return key &^ (1<<denseRowBits - 1)
	}
	return key
}

// InitializerKind says how the weights of a row that was never pushed read.
type InitializerKind uint8

const (
	InitZeros   InitializerKind = 1 // 0
	InitUniform InitializerKind = 2 // uniform in [A, B)
	InitNormal  InitializerKind = 3 // mean A, standard deviation B, sum of twelve uniforms
)

func (k InitializerKind) String() string {
	switch k {
	case InitZeros:
		return "zeros"
	case InitUniform:
		return "uniform"
	case InitNormal:
		return "normal"
	}
	return fmt.Sprintf("initializer(%d)", uint8(k))
}

// Initializer is a pure function f(Seed, NameHash, key) → weights, fixed with the
// table. Uniform uses [A, B); Normal has mean A and standard deviation B.
type Initializer struct {
	Kind InitializerKind
	Seed uint64
	// NameHash is optim.NameHash of the name that the table was created with. The
	// scheduler sets it, a caller leaves it 0. It is stored with the table, so that a
	// restored table keeps its initial weights under any name.
	NameHash uint64
	A, B     float32
}

// Schema is what a table is created with; it never changes afterwards.
type Schema struct {
	ID          TableID // issued by the scheduler
	Name        string
	Kind        TableKind
	Dim         int // weights per row, 1 … MaxDim
	Initializer Initializer
	Optimizer   Optimizer

	// What follows came later; the zero values are what tables were before.
	Storage   DType     // of the weights: 0 or Float32, or BFloat16
	Admission Admission // which keys get a row
	Expire    uint32    // ticks of logged time without a push after which a row goes; 0: never
	Capacity  Capacity  // how many rows there may be
	SumPushes bool      // gradients of several pushes may be summed, although the optimizer is not linear

	// Memory is for a tiered table: the bytes of memory that one copy of the table may take, over all shards. The other
	// rows are on disk. MinMemory … MaxMemory; 0: all rows are in memory. It changes no row, version or result.
	Memory uint64
}

var tableName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,127}$`)

// Validate reports the first thing that makes s unusable as a table, as
// CodeInvalidArgument. It does not look at ID.
func (s *Schema) Validate() error {
	switch {
	case !tableName.MatchString(s.Name):
		return Errorf(CodeInvalidArgument, "table name %q: want a letter, then up to 127 letters, digits, '_', '.' or '-'",
			s.Name)
	case s.Kind != Sparse && s.Kind != Dense:
		return Errorf(CodeInvalidArgument, "table %s: kind %s: want sparse or dense", s.Name, s.Kind)
	case s.Dim < 1 || s.Dim > MaxDim:
		return Errorf(CodeInvalidArgument, "table %s: dim %d: want 1 to %d", s.Name, s.Dim, MaxDim)
	}
	if err := s.Initializer.validate(); err != nil {
		return fmt.Errorf("table %s: %w", s.Name, err)
	}
	if err := s.Optimizer.validate(); err != nil {
		return fmt.Errorf("table %s: %w", s.Name, err)
	}
	if err := s.validatePolicies(); err != nil {
		return fmt.Errorf("table %s: %w", s.Name, err)
	}
	return nil
}

// SameShape reports whether two schemas of one name may stand for each other:
// everything is equal except what the scheduler sets, the ID and the hash of the name.
func (s Schema) SameShape(o Schema) bool {
	s.ID, s.Initializer.NameHash = o.ID, o.Initializer.NameHash
	return s.Normal() == o.Normal()
}

func (i *Initializer) validate() error {
	if !finite(i.A) || !finite(i.B) {
		return Errorf(CodeInvalidArgument, "initializer: A and B must be finite, got %v and %v", i.A, i.B)
	}
	switch i.Kind {
	case InitZeros:
		return nil
	case InitUniform:
		if i.A >= i.B {
			return Errorf(CodeInvalidArgument, "uniform initializer: want low < high, got %v and %v", i.A, i.B)
		}
		return nil
	case InitNormal:
		if i.B < 0 {
			return Errorf(CodeInvalidArgument, "normal initializer: want a standard deviation ≥ 0, got %v", i.B)
		}
		return nil
	}
	return Errorf(CodeInvalidArgument, "initializer kind %d: want zeros, uniform or normal", i.Kind)
}

func finite(v float32) bool { return v-v == 0 }
