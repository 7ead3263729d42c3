package wire

import (
	"fmt"
	"math"
	"strings"

	"github.com/rowraft/rowraft"
)

// EntrySweep removes the rows and candidates of some slots that meet conditions
// (docs/formats/streaming.md).
const EntrySweep EntryKind = 9

// SweepSize is the length of a sweep entry's body.
const SweepSize = 32

// Conditions of a sweep. All that are given must hold.
const (
	SweepExpire uint32 = 1 << iota // unseen for longer than the table's expiry
	SweepUnseen                    // unseen for more than Unseen ticks
	SweepCount                     // pushed fewer than Count times
	SweepNorm                      // norm of the weights below Norm

	sweepAll = 1<<iota - 1
)

// Sweep states what to remove and in which slots.
type Sweep struct {
	Table      rowraft.TableID
	First      rowraft.Slot
	Slots      int // number of slots from First on, at least 1
	Conditions uint32
	Unseen     uint32  // ticks, with SweepUnseen
	Count      uint32  // with SweepCount, at least 1
	Norm       float32 // with SweepNorm, finite and above 0
}

// String describes the conditions.
func (s *Sweep) String() string {
	var all []string
	if s.Conditions&SweepExpire != 0 {
		all = append(all, "expired")
	}
	if s.Conditions&SweepUnseen != 0 {
		all = append(all, fmt.Sprintf("unseen for more than %ds", s.Unseen))
	}
	if s.Conditions&SweepCount != 0 {
		all = append(all, fmt.Sprintf("pushed fewer than %d times", s.Count))
	}
	if s.Conditions&SweepNorm != 0 {
		all = append(all, fmt.Sprintf("norm below %v", s.Norm))
	}
	return strings.Join(all, " and ")
}

// Validate returns an error for the first impossible field.
//
// Errors: CodeInvalidArgument.
func (s *Sweep) Validate() error {
	has := func(c uint32) bool { return s.Conditions&c != 0 }
	switch {
	case s.First >= rowraft.MaxSlots || s.Slots < 1 || s.Slots > rowraft.MaxSlots-int(s.First):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"sweep of %d slots from slot %d: want at least 1, and none above %d", s.Slots, s.First, rowraft.MaxSlots-1)
	case s.Conditions == 0 || s.Conditions > sweepAll:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"sweep with conditions %#x: want some of expire, unseen, count, norm", s.Conditions)
	case !has(SweepUnseen) && s.Unseen != 0, !has(SweepCount) && s.Count != 0, !has(SweepNorm) &&
		math.Float32bits(s.Norm) != 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"sweep with a number for a condition that it does not set: set the condition, or leave the number 0")
	case has(SweepCount) && s.Count == 0:
		return rowraft.Errorf(rowraft.CodeInvalidArgument, "sweep of rows pushed fewer than 0 times: want at least 1")
	case has(SweepNorm) && !(s.Norm > 0 && s.Norm <= math.MaxFloat32):
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"sweep of rows with a norm below %v: want a finite number above 0", s.Norm)
	}
	return nil
}

// SweepEntry returns the entry of a sweep, which must be valid.
func SweepEntry(h EntryHeader, s *Sweep) []byte {
	h.Kind, h.Parts = EntrySweep, 0
	b := make([]byte, EntryHeaderSize, EntryHeaderSize+SweepSize)
	PutEntryHeader(b, h)
	b = le.AppendUint64(b, uint64(s.Table))
	b = le.AppendUint16(b, uint16(s.First))
	b = le.AppendUint16(b, uint16(int(s.First)+s.Slots-1))
	b = le.AppendUint32(b, s.Conditions)
	b = le.AppendUint32(b, s.Unseen)
	b = le.AppendUint32(b, s.Count)
	b = le.AppendUint32(b, math.Float32bits(s.Norm))
	return le.AppendUint32(b, 0)
}

// ParseSweep reads the body of a sweep entry. Errors: CodeCorrupt.
func ParseSweep(b []byte) (s Sweep, err error) {
	if len(b) != SweepSize {
		return s, rowraft.Errorf(rowraft.CodeCorrupt, "sweep entry has %d bytes, want %d", len(b), SweepSize)
	}
	s = Sweep{
		Table: rowraft.TableID(le.Uint64(b)), First: rowraft.Slot(le.Uint16(b[8:])),
		Slots:      int(le.Uint16(b[10:])) - int(le.Uint16(b[8:])) + 1,
		Conditions: le.Uint32(b[12:]), Unseen: le.Uint32(b[16:]), Count: le.Uint32(b[20:]),
		Norm: math.Float32frombits(le.Uint32(b[24:])),
	}
	if err := s.Validate(); err != nil {
		return s, rowraft.Errorf(rowraft.CodeCorrupt, "%w", err)
	}
	if le.Uint32(b[28:]) != 0 {
		return s, rowraft.Errorf(rowraft.CodeCorrupt, "sweep entry has reserved bytes that are not 0")
	}
	return s, nil
}
