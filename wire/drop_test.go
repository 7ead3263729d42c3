package wire

import (
	"bytes"
	"testing"

	"github.com/rowraft/rowraft"
)

func TestGoldenDropTable(t *testing.T) {
	file := golden(t, "entry_drop.hex")
	h, body, err := ParseEntryHeader(file)
	if err != nil || h.Kind != EntryDropTable || h.Version != FirstVersion {
		t.Fatalf("header %+v, %v", h, err)
	}
	if id, err := ParseDropTable(body); err != nil || id != 0x0123456789abcdef {
		t.Errorf("table %#x, %v", uint64(id), err)
	}
	if got := DropTableEntry(EntryHeader{Version: FirstVersion, LogTime: 5, Epoch: 3},
		0x0123456789abcdef); !bytes.Equal(got, file) {
		t.Errorf("written %x\nwant    %x", got, file)
	}
	for _, bad := range [][]byte{nil, body[:7], append(bytes.Clone(body), 0), make([]byte, 8)} {
		if _, err := ParseDropTable(bad); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
			t.Errorf("body %x: %v, want Corrupt", bad, err)
		}
	}
	file[24] = 1
	if _, _, err := ParseEntryHeader(file); rowraft.CodeOf(err) != rowraft.CodeCorrupt {
		t.Errorf("a drop with parts: %v, want Corrupt", err)
	}
}
