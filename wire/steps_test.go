package wire

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
)

var goldenJob = rowraft.JobID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}

var goldenMembership = Membership{
	Job: goldenJob, Generation: 3, First: 17, Deadline: 1e9, Quorum: 1, Members: []Member{{1, 4}, {1023, 5}},
}

// goldenStep is the content of testdata/entry_step.hex.
func goldenStep() Step {
	s := Step{
		Job: goldenJob, Generation: 3, Step: 17, Piece: 2, Last: true, AfterTable: 7, AfterKey: 41,
		Positions: []rowraft.Position{{ID: 6, Offset: 256}, {ID: 8, Offset: 3}},
	}
	s.Contributors.Add(1)
	s.Contributors.Add(65)
	seg := Segment{Table: 7, N: 1, Dim: 1, DType: rowraft.Float32, Flags: FlagLR, LR: 0.5}
	s.Payload = make([]byte, seg.Size())
	body := seg.Put(s.Payload)
	le.PutUint64(body.Keys, 42)
	PutFloats(body.Values, rowraft.Float32, []float32{1})
	return s
}

func TestGoldenJobEntries(t *testing.T) {
	header := func(kind EntryKind) EntryHeader {
		return EntryHeader{Kind: kind, Version: FirstVersion, LogTime: 5, Epoch: 2}
	}
	for file, want := range map[string]Membership{"entry_membership.hex": goldenMembership,
		"entry_membership_end.hex": {Job: goldenJob}} {
		entry := golden(t, file)
		h, body, err := ParseEntryHeader(entry)
		if err != nil || h != header(EntryMembership) {
			t.Fatalf("%s: header %+v, %v", file, h, err)
		}
		if got, err := ParseMembership(body); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v, %v", file, got, err)
		}
		if got := MembershipEntry(EntryHeader{Version: FirstVersion, LogTime: 5, Epoch: 2}, &want); !bytes.Equal(got, entry) {
			t.Errorf("%s is written as %x", file, got)
		}
	}
	entry := golden(t, "entry_step.hex")
	h, body, err := ParseEntryHeader(entry)
	if err != nil || h != header(EntryStep) {
		t.Fatalf("header %+v, %v", h, err)
	}
	want := goldenStep()
	if got, err := ParseStep(body); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the step is read as %+v, %v", got, err)
	}
	if got := AppendStepEntry(nil, EntryHeader{Version: FirstVersion, LogTime: 5, Epoch: 2}, &want); !bytes.Equal(got,
		entry) || want.Size() != len(got) {
		t.Errorf("the step is written as %x (%d bytes)", got, want.Size())
	}
}

func TestGoldenClockedPush(t *testing.T) {
	entry := golden(t, "entry_clocked.hex")
	h, body, err := ParseEntryHeader(entry)
	var p Part
	if err == nil {
		_, err = ParsePart(body, &p)
	}
	if err != nil || h.Version != FirstVersion || p.Op != OpClocked {
		t.Fatalf("%+v, %+v, %v", h, p, err)
	}
	want := Clock{Job: goldenJob, Incarnation: 4, Rank: 1, Clock: 9, Positions: []rowraft.Position{{ID: 6, Offset: 256}}}
	got, segments, err := ParseClock(p.Payload)
	if err != nil || !reflect.DeepEqual(got, want) || len(segments) != 40 {
		t.Errorf("the push is read as %+v and %d bytes, %v", got, len(segments), err)
	}
	if again := append(AppendClock(nil, &want), segments...); !bytes.Equal(again, p.Payload) ||
		want.Size() != len(again)-40 {
		t.Errorf("the push is written as %x", again)
	}
}

// TestImpossibleJobEntries: changes of single bytes in the golden entries give entries that the page
// excludes, and these are refused.
func TestImpossibleJobEntries(t *testing.T) {
	change := func(file string, at int, b ...byte) []byte {
		e := golden(t, file)
		copy(e[at:], b)
		return e
	}
	const body = EntryHeaderSize
	for name, entry := range map[string][]byte{
		"no generation":                  change("entry_membership.hex", body+16, 0),
		"no first step":                  change("entry_membership.hex", body+24, 0),
		"a quorum above the members":     change("entry_membership.hex", body+40, 3),
		"another number of members":      change("entry_membership.hex", body+44, 3),
		"an end with members' fields":    change("entry_membership_end.hex", body+24, 1),
		"a reserved byte of a member":    change("entry_membership.hex", body+52, 1),
		"incarnation 0":                  change("entry_membership.hex", body+56, 0),
		"ranks that do not ascend":       change("entry_membership.hex", body+64, 1, 0),
		"rank 1024":                      change("entry_membership.hex", body+64, 0, 4),
		"step 0":                         change("entry_step.hex", body+24, 0),
		"last 2":                         change("entry_step.hex", body+36, 2),
		"no bitmap":                      change("entry_step.hex", body+37, 0),
		"a bitmap of 17 words":           change("entry_step.hex", body+37, 17),
		"reserved bytes":                 change("entry_step.hex", body+39, 1),
		"more positions than bytes":      change("entry_step.hex", body+40, 200),
		"too many positions":             change("entry_step.hex", body+40, 1, 16),
		"more reserved bytes":            change("entry_step.hex", body+47, 1),
		"a last word of the bitmap of 0": change("entry_step.hex", body+72, 0),
		"data parts that do not ascend":  change("entry_step.hex", body+96, 6),
		"a step that ends early":         golden(t, "entry_step.hex")[:body+63],
		"a membership that ends early":   golden(t, "entry_membership.hex")[:body+79],
	} {
		t.Run(name, func(t *testing.T) {
			h, b, err := ParseEntryHeader(entry)
			if err != nil {
				t.Fatal(err)
			}
			if h.Kind == EntryStep {
				_, err = ParseStep(b)
			} else {
				_, err = ParseMembership(b)
			}
			if rowraft.CodeOf(err) != rowraft.CodeCorrupt {
				t.Errorf("%v, want Corrupt", err)
			}
		})
	}
	const payload = body + PartHeaderSize
	for name, entry := range map[string][]byte{
		"a clock that ends early":       golden(t, "entry_clocked.hex")[:payload+39],
		"more positions than bytes":     change("entry_clocked.hex", payload+36, 5),
		"more than 64 positions":        append(change("entry_clocked.hex", payload+36, 65), make([]byte, 2048)...),
		"data parts that do not ascend": append(change("entry_clocked.hex", payload+36, 2)[:payload+56], make([]byte, 16)...),
	} {
		if _, _, err := ParseClock(entry[payload:]); rowraft.CodeOf(err) != rowraft.CodeInvalidArgument {
			t.Errorf("%s: %v, want InvalidArgument", name, err)
		}
	}
}

func TestRankSet(t *testing.T) {
	var a, b RankSet
	for _, r := range []rowraft.Rank{0, 63, 64, 1023} {
		a.Add(r)
	}
	b = a
	b.Add(5)
	if a.Len() != 4 || !a.Has(64) || a.Has(65) || !a.Within(&b) || b.Within(&a) {
		t.Errorf("%x, %x", a, b)
	}
}

// FuzzParseClock: encoding a parsed clock gives the same bytes.
func FuzzParseClock(f *testing.F) {
	f.Add(golden(f, "entry_clocked.hex")[EntryHeaderSize+PartHeaderSize:])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		c, rest, err := ParseClock(b)
		if err != nil {
			testutil.WantCode(t, err, rowraft.CodeInvalidArgument, "clocked push")
			return
		}
		if n := len(b) - len(rest); n != c.Size() || !bytes.Equal(AppendClock(nil, &c), b[:n]) {
			t.Errorf("%x is written as %x", b[:n], AppendClock(nil, &c))
		}
	})
}
