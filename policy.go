package rowraft

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Tick is the unit of [Schema.Expire]: one second of logged time.
const Tick = time.Second

// TickOf returns the tick of a log time in nanoseconds.
func TickOf(logTime uint64) uint32 { return uint32(min(logTime/uint64(Tick), math.MaxUint32)) }

// MaxAdmitCount is the largest [Admission.Count].
const MaxAdmitCount = 1<<16 - 1

// AdmissionKind says which keys of a table get a row.
type AdmissionKind uint8

const (
	AdmitAll         AdmissionKind = 0 // each key with its first push
	AdmitCount       AdmissionKind = 1 // a key with its Count-th push
	AdmitProbability AdmissionKind = 2 // a key with each push with Probability, drawn from seed, key and count
)

func (k AdmissionKind) String() string {
	switch k {
	case AdmitAll:
		return "all"
	case AdmitCount:
		return "count"
	case AdmitProbability:
		return "probability"
	}
	return fmt.Sprintf("admission(%d)", uint8(k))
}

// Admission keeps rare keys out of a table: the pushes of a key that has not
// been admitted yet change no row, and it reads as its initializer. An assign
// makes a row whatever it says. Fields a kind does not use are 0.
type Admission struct {
	Kind        AdmissionKind
	Count       uint32  // AdmitCount: 2 … MaxAdmitCount
	Probability float32 // AdmitProbability: in (0, 1)
}

// String is what [ParseAdmission] reads: "all", "count:3", "probability:0.1".
func (a Admission) String() string {
	switch a.Kind {
	case AdmitCount:
		return fmt.Sprintf("count:%d", a.Count)
	case AdmitProbability:
		return "probability:" + strconv.FormatFloat(float64(a.Probability), 'g', -1, 32)
	}
	return a.Kind.String()
}

// ParseAdmission reads "all" (or ""), "count:N" or "probability:P".
func ParseAdmission(s string) (Admission, error) {
	kind, value, _ := strings.Cut(s, ":")
	var a Admission
	switch kind {
	case "", "all":
		if value == "" {
			return a, nil
		}
	case "count":
		if n, err := strconv.ParseUint(value, 10, 32); err == nil {
			a = Admission{Kind: AdmitCount, Count: uint32(n)}
			return a, a.validate()
		}
	case "probability":
		if p, err := strconv.ParseFloat(value, 32); err == nil {
			a = Admission{Kind: AdmitProbability, Probability: float32(p)}
			return a, a.validate()
		}
	}
	return a,
		Errorf(CodeInvalidArgument,
			"admission %q: want all, count:N (for example count:3) or probability:P (for example probability:0.1)", s)
}

func (a *Admission) validate() error {
	switch a.Kind {
	case AdmitAll:
		if a.Count != 0 || a.Probability != 0 {
			return Errorf(CodeInvalidArgument, "admission of all keys takes neither a count nor a probability")
		}
		return nil
	case AdmitCount:
		if a.Count < 2 || a.Count > MaxAdmitCount || a.Probability != 0 {
			return Errorf(CodeInvalidArgument, "admission by count: want 2 to %d pushes of a key before it gets a row, got %d",
				MaxAdmitCount, a.Count)
		}
		return nil
	case AdmitProbability:
		if !(a.Probability > 0 && a.Probability < 1) || a.Count != 0 {
			return Errorf(CodeInvalidArgument, "admission by probability: want more than 0 and less than 1, got %v",
				a.Probability)
		}
		return nil
	}
	return Errorf(CodeInvalidArgument, "admission kind %d: want all, count or probability", a.Kind)
}

// EvictKind says which row makes room in a full table.
type EvictKind uint8

const (
	EvictLRU EvictKind = 1 // the one whose last push is longest ago
	EvictLFU EvictKind = 2 // the one with the fewest pushes
)

func (k EvictKind) String() string {
	switch k {
	case 0:
		return "none"
	case EvictLRU:
		return "lru"
	case EvictLFU:
		return "lfu"
	}
	return fmt.Sprintf("evict(%d)", uint8(k))
}

// ParseEvict reads "lru", "lfu", or "" for none.
func ParseEvict(s string) (EvictKind, error) {
	switch s {
	case "":
		return 0, nil
	case "lru":
		return EvictLRU, nil
	case "lfu":
		return EvictLFU, nil
	}
	return 0, Errorf(CodeInvalidArgument, "evict %q: want lru or lfu", s)
}

// MaxCapacityRows is the largest [Capacity.Rows].
const MaxCapacityRows = 1 << 44

// Capacity bounds the rows of the whole table. Each slot has an equal share of
// it, so a table holds somewhat fewer rows when its first slot is full.
type Capacity struct {
	Rows  uint64    // 0: no bound; else DefaultSlots … MaxCapacityRows, and at least the slots of the cluster
	Evict EvictKind // what makes room; 0 only without a bound
}

func (c *Capacity) validate() error {
	switch {
	case c.Rows == 0 && c.Evict != 0:
		return Errorf(CodeInvalidArgument, "capacity: evict %s without a number of rows", c.Evict)
	case c.Rows == 0:
		return nil
	case c.Rows < DefaultSlots || c.Rows > MaxCapacityRows:
		return Errorf(CodeInvalidArgument, "capacity of %d rows: want %d (one in each slot) to %d", c.Rows, DefaultSlots,
			uint64(MaxCapacityRows))
	case c.Evict != EvictLRU && c.Evict != EvictLFU:
		return Errorf(CodeInvalidArgument, "capacity of %d rows: which row makes room? want evict lru or lfu, got %s", c.Rows,
			c.Evict)
	}
	return nil
}

// MinMemory and MaxMemory are the limits of [Schema.Memory].
const (
	MinMemory = 1 << 10
	MaxMemory = 1 << 50
)

// ParseTicks reads a time as a duration ("3600s", "168h") or as a number of
// ticks, which are seconds; "" and "0" are 0.
func ParseTicks(s string) (uint32, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return uint32(n), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 || d%Tick != 0 || d/Tick > math.MaxUint32 {
		return 0, Errorf(CodeInvalidArgument, "expiry %q: want whole seconds, as a duration (3600s, 168h) or a number", s)
	}
	return uint32(d / Tick), nil
}

// StorageType returns the type that weights are stored in.
func (s *Schema) StorageType() DType {
	if s.Storage == 0 {
		return Float32
	}
	return s.Storage
}

// WeightBytes returns the bytes that the weights of a row take in its record, a
// multiple of 4.
func (s *Schema) WeightBytes() int { return (s.Dim*s.StorageType().Size() + 3) &^ 3 }

// Normal returns s in its one stored form, so that equal tables compare equal:
// Storage is 0 where weights are Float32.
func (s Schema) Normal() Schema {
	if s.Storage == Float32 {
		s.Storage = 0
	}
	return s
}

// Extension is the oldest extension of a schema's encoding that can hold s: 0 none;
// 1 if it has Storage, SumPushes, Admission, Expire or Capacity; 2 if its optimizer needs it; 3 if it has Memory.
func (s *Schema) Extension() int {
	switch {
	case s.Memory != 0:
		return 3
	case s.Optimizer.extended():
		return 2
	case s.StorageType() != Float32 || s.SumPushes || s.Admission != Admission{} || s.Expire != 0 ||
		s.Capacity != Capacity{}:
		return 1
	}
	return 0
}

// SumsPushes reports whether a leader may sum the gradients that several pushes have for a row, so that the optimizer
// runs once with the sum. Without SumPushes it may if the result is the same in exact arithmetic.
func (s *Schema) SumsPushes() bool {
	o := &s.Optimizer
	return s.SumPushes || o.Bound == 0 && (o.Kind == Add || o.Kind == SGD && o.WeightDecay == 0)
}

func (s *Schema) validatePolicies() error {
	if s.Storage != 0 && s.Storage != Float32 && s.Storage != BFloat16 {
		return Errorf(CodeInvalidArgument, "storage %s: want float32 or bfloat16", s.Storage)
	}
	if s.Kind == Dense && (s.Admission != Admission{} || s.Expire != 0 || s.Capacity != Capacity{}) {
		return Errorf(CodeInvalidArgument,
			"a dense table keeps all of its rows: admission, expiry and capacity are for sparse ones")
	}
	if s.Memory != 0 && s.Kind == Dense {
		return Errorf(CodeInvalidArgument, "a dense table has all of its rows in memory: only a sparse one can be tiered")
	}
	if s.Memory != 0 && (s.Memory < MinMemory || s.Memory > MaxMemory) {
		return Errorf(CodeInvalidArgument, "memory of %d bytes for a tiered table: want %d to %d", s.Memory, MinMemory,
			uint64(MaxMemory))
	}
	if err := s.Admission.validate(); err != nil {
		return err
	}
	return s.Capacity.validate()
}

// Tracked reports whether the table keeps recency and counts of its rows, which
// admission, expiry and capacity decide by (docs/formats/streaming.md).
func (s *Schema) Tracked() bool {
	return s.Admission.Kind != AdmitAll || s.Expire != 0 || s.Capacity.Rows != 0
}
