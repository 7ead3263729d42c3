package wire

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
)

var (
	restoreHeader = EntryHeader{Version: 1, LogTime: 5, Epoch: 2}
	restoreID     = RestoreID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	restoreTable  = rowraft.Schema{
		ID: 10, Name: "t", Kind: rowraft.Sparse, Dim: 1,
		Initializer: rowraft.Initializer{Kind: rowraft.InitZeros, NameHash: 0x76033e85f0acf92d},
		Optimizer:   rowraft.Optimizer{Kind: rowraft.SGD, LR: 1},
	}
)

// bodyOf returns the body of the golden entry of a kind.
func bodyOf(t *testing.T, file string, kind EntryKind) (entry, body []byte) {
	t.Helper()
	entry = golden(t, file)
	h, body, err := ParseEntryHeader(entry)
	want := restoreHeader
	want.Kind = kind
	if err != nil || h != want {
		t.Fatalf("header %+v, %v; want %+v", h, err, want)
	}
	return entry, body
}

func TestGoldenRestoreBegin(t *testing.T) {
	entry, body := bodyOf(t, "entry_restore_begin.hex", EntryRestoreBegin)
	want := RestoreBegin{ID: restoreID, Epoch: 3, Tables: []rowraft.Schema{restoreTable}}
	got, err := ParseRestoreBegin(body)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	if b := RestoreBeginEntry(restoreHeader, &want); !bytes.Equal(b, entry) {
		t.Errorf("wrote %x\nwant  %x", b, entry)
	}
	twice := append(bytes.Clone(body), body[32:]...)
	twice[24] = 2
	for name, bad := range map[string][]byte{"cut": body[:31], "a table less": body[:32], "a table twice": twice} {
		if _, err := ParseRestoreBegin(bad); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("%s: %v, want Corrupt", name, err)
		}
	}
}

func TestGoldenRestoreRows(t *testing.T) {
	entry, body := bodyOf(t, "entry_restore_rows.hex", EntryRestoreRows)
	id, seq, blocks, err := ParseRestoreRows(body)
	if err != nil || id != restoreID || seq != 9 {
		t.Fatalf("id %x, seq %d, %v", id, seq, err)
	}
	want := []RestoreBlock{
		{Table: 10, Slot: 5, Counter: 3, Rows: 1, RecordBytes: 28,
			Records: []byte{0, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x3f}},
		{Table: 10, Slot: 4095, Counter: 1, RecordBytes: 28, Records: []byte{}},
	}
	var built []byte
	rest := blocks
	for i := range want {
		var got RestoreBlock
		if rest, err = ParseRestoreBlock(rest, &got); err != nil || !reflect.DeepEqual(got, want[i]) {
			t.Errorf("read %+v, %v; want %+v", got, err, want[i])
		}
		built = AppendRestoreBlock(built, &want[i])
	}
	if b := RestoreRowsEntry(restoreHeader, id, seq, built); len(rest) != 0 || !bytes.Equal(b, entry) {
		t.Errorf("wrote %x\nwant  %x", b, entry)
	}
	for name, change := range map[string]func(b []byte) []byte{
		"cut in a block":         func(b []byte) []byte { return b[:40] },
		"cut in the padding":     func(b []byte) []byte { return b[:60] },
		"records that are short": func(b []byte) []byte { b[24] = 23; return b },
		"too many rows":          func(b []byte) []byte { b[12] = 9; return b },
		"rows beyond all": func(b []byte) []byte {
			copy(b[12:], "\xff\xff\xff\xff")
			copy(b[24:], "\xff\xff\xff\xff")
			return b
		},
		"padding": func(b []byte) []byte { b[63] = 1; return b },
	} {
		var got RestoreBlock
		if _, err := ParseRestoreBlock(change(bytes.Clone(blocks)), &got); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("%s: %v, want Corrupt", name, err)
		}
	}
	if _, _, _, err := ParseRestoreRows(body[:23]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a short body: %v, want Corrupt", err)
	}
}

func TestGoldenRestoreCloseAndDrop(t *testing.T) {
	entry, body := bodyOf(t, "entry_restore_close.hex", EntryRestoreClose)
	want := RestoreClose{ID: restoreID, Epoch: 3, Chunks: 9, Rows: 1}
	for i := range want.Digest {
		want.Digest[i] = byte(0xf0 + i)
	}
	got, err := ParseRestoreClose(body)
	if err != nil || got != want {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	if b := RestoreCloseEntry(restoreHeader, &want); !bytes.Equal(b, entry) {
		t.Errorf("wrote %x\nwant  %x", b, entry)
	}
	if _, err := ParseRestoreClose(body[1:]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a short close: %v, want Corrupt", err)
	}
	entry, body = bodyOf(t, "entry_restore_drop.hex", EntryRestoreDrop)
	if id, err := ParseRestoreDrop(body); err != nil || id != restoreID {
		t.Errorf("id %x, %v", id, err)
	}
	if b := RestoreDropEntry(restoreHeader, restoreID); !bytes.Equal(b, entry) {
		t.Errorf("wrote %x\nwant  %x", b, entry)
	}
	if _, err := ParseRestoreDrop(body[1:]); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a short drop: %v, want Corrupt", err)
	}
}

// TestGoldenRestoreOfTrackedTables: a base, ticks and candidates.
func TestGoldenRestoreOfTrackedTables(t *testing.T) {
	entry, body := bodyOf(t, "entry_restore_begin_base.hex", EntryRestoreBegin)
	begin := RestoreBegin{ID: restoreID, Epoch: 3, Base: 604800}
	if got, err := ParseRestoreBegin(body); err != nil || !reflect.DeepEqual(got, begin) {
		t.Errorf("read %+v, %v; want %+v", got, err, begin)
	}
	if b := RestoreBeginEntry(restoreHeader, &begin); !bytes.Equal(b, entry) {
		t.Errorf("wrote %x\nwant  %x", b, entry)
	}

	entry, body = bodyOf(t, "entry_restore_rows_ticks.hex", EntryRestoreRows)
	id, seq, rest, err := ParseRestoreRows(body)
	if err != nil || seq != 1 {
		t.Fatalf("seq %d, %v", seq, err)
	}
	var built []byte
	for _, want := range []RestoreBlock{
		{Table: 10, Slot: 5, Counter: 6, Rows: 1, RecordBytes: 28, Tick: 1000,
			Records: []byte(
				"\xe7\x03\x00\x00\x02\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x3f")},
		{Table: 10, Slot: 5, Counter: 6, Rows: 2, RecordBytes: 16, Tick: 1000, Candidates: true, Records: []byte("" +
			"\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x90\x03\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00\x02\x00\x00\x00\xe8\x03\x00\x00")},
	} {
		var got RestoreBlock
		if rest, err = ParseRestoreBlock(rest, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("read %+v, %v; want %+v", got, err, want)
		}
		built = AppendRestoreBlock(built, &want)
	}
	if b := RestoreRowsEntry(restoreHeader, id, seq, built); len(rest) != 0 || !bytes.Equal(b, entry) {
		t.Errorf("wrote %x\nwant  %x", b, entry)
	}
	// the kind of records, the byte after it, the size of a candidate
	for at, v := range map[int]byte{10: 2, 11: 1, 24: 17} {
		bad := bytes.Clone(built[64:])
		bad[at] = v
		if _, err := ParseRestoreBlock(bad, new(RestoreBlock)); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("byte %d is %d: %v, want Corrupt", at, v, err)
		}
	}
}
