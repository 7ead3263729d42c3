package wire

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
)

func TestGoldenMark(t *testing.T) {
	want := golden(t, "entry_mark.hex")
	h, body, err := ParseEntryHeader(want)
	if err != nil || h != (EntryHeader{Kind: EntryMark, Version: 1, LogTime: 5, Epoch: 2}) {
		t.Fatalf("header %+v, %v", h, err)
	}
	id, err := ParseMark(body)
	if err != nil || id != (MarkID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}) {
		t.Errorf("id %x, %v", id, err)
	}
	if got := MarkEntry(h, id); !bytes.Equal(got, want) {
		t.Errorf("wrote %x, want %x", got, want)
	}
	for _, bad := range [][]byte{nil, body[:15], append(bytes.Clone(body), 0)} {
		if _, err := ParseMark(bad); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("%d bytes: %v, want Corrupt", len(bad), err)
		}
	}
}
