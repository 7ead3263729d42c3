package marks

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"reflect"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// goldenMarks and goldenMembers are built by hand from docs/formats/marks.md and peer.md, with
// checksums of another program.
const (
	goldenMarks = "726f77726166744d" + "0100" + "0000" + "4f000000" +
		"01000000" + "026e32" + "0300000000000000" + "00ffeeddccbbaa99" +
		"01000000" + "0773686172642d30" + "02000000" + "03722d31" + "e803000000000000" + "0c00000000000000" + "03722d32" +
		"de03000000000000" + "0b00000000000000" +
		"f328198e"
	goldenMembers = "1f036fb6" +
		"03722d31" + "026e31" + "e803000000000000" + "0c00000000000000" + "0700000000000000" + "8877665544332211" +
		"03722d32" + "026e32" + "de03000000000000" + "0b00000000000000" + "0300000000000000" + "0900000000000000"
)

func TestMarksGoldenBytes(t *testing.T) {
	file := content{
		nodes:  map[rowraft.NodeID]Process{"n2": {3, 0x99aabbccddeeff00}},
		groups: map[string]map[rowraft.ReplicaID]Mark{"shard-0": {"r-1": {1000, 12}, "r-2": {990, 11}}},
	}
	want, _ := hex.DecodeString(goldenMarks)
	if got := file.encode(); !bytes.Equal(got, want) {
		t.Errorf("encode(%+v)\n got %x\nwant %x", file, got, want)
	}
	if got, err := decode(want); err != nil || !reflect.DeepEqual(got, file) {
		t.Errorf("decodeMarks = %+v, %v", got, err)
	}
	list := []Member{{"r-1", "n1", Mark{1000, 12}, Process{7, 0x1122334455667788}},
		{"r-2", "n2", Mark{990, 11}, Process{3, 9}}}
	var b []byte
	for _, one := range list {
		b = AppendMember(b, one)
	}
	want, _ = hex.DecodeString(goldenMembers)
	if got := SealMembers(b); !bytes.Equal(got, want) {
		t.Errorf("sealTold(%+v)\n got %x\nwant %x", list, got, want)
	}
	if got, err := DecodeMembers(want); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("decodeTold = %+v, %v", got, err)
	}
	for i := range want {
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if got, err := DecodeMembers(bad); err == nil {
			t.Errorf("byte %d changed: read %+v", i, got)
		}
	}
}

func TestDamagedMarksStartEmpty(t *testing.T) {
	disk := vfs.NewMem()
	good, _ := hex.DecodeString(goldenMarks)
	for _, tc := range []struct {
		name string
		raw  []byte
		want rowraft.Code // of the error
		left int          // servers known
	}{
		{"good", good, 0, 1},
		{"cut", good[:len(good)-1], 0, 0},
		{"empty", nil, 0, 0},
		{"newer", frame.Seal(magic, version+1, nil), rowraft.CodeVersionTooNew, 0},
	} {
		if err := vfs.WriteFile(disk, "/"+FileName, tc.raw); err != nil {
			t.Fatal(err)
		}
		m, err := Open(disk, "/", slog.New(slog.DiscardHandler))
		if tc.want == 0 && err != nil || tc.want != 0 && rowraft.CodeOf(err) != tc.want || len(m.nodes) != tc.left {
			t.Errorf("%s: %+v, %v", tc.name, m.content, err)
		}
	}
}

// Marks only grow; of two processes with one start the first one counts.
func TestMarksOnlyGrow(t *testing.T) {
	m, err := Open(vfs.NewMem(), "/", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.Raise("g", "r", Mark{10, 2})
	m.Raise("g", "r", Mark{9, 3})
	if got, want := m.Of("g", "r"), (Mark{10, 3}); got != want {
		t.Errorf("mark %+v, want %+v", got, want)
	}
	m.RecordProcess("n", Process{2, 1})
	m.RecordProcess("n", Process{2, 7})
	m.RecordProcess("n", Process{1, 9})
	if got, want := m.Process("n"), (Process{2, 1}); got != want {
		t.Errorf("process %+v, want %+v", got, want)
	}
	m.Retain("g", func(rowraft.ReplicaID) bool { return false })
	if got := m.Of("g", "r"); got != (Mark{}) {
		t.Errorf("a replica that left has mark %+v", got)
	}
}

// marksLife is how many flushes returned, and how many were begun.
type marksLife struct{ done, begun uint64 }

// After a crash at any step of a flush the file has the marks of the last flush that returned, or
// later ones, and can be written again.
func TestCrashAtEachStepOfMarks(t *testing.T) {
	live := func(disk vfs.FS, acked *marksLife, flushes int) error {
		m, err := Open(disk, "/", slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		if got := m.Of("g", "r").Index; got < acked.done || got > acked.begun {
			return fmt.Errorf("mark %d, flushed %d to %d", got, acked.done, acked.begun)
		}
		if _, err := disk.Stat("/" + FileName); errors.Is(err, fs.ErrNotExist) && acked.done > 0 {
			return err
		}
		for range flushes {
			acked.begun++
			m.Raise("g", "r", Mark{Index: acked.begun})
			if err := m.Flush(); err != nil {
				return err
			}
			acked.done = acked.begun
		}
		return nil
	}
	vfstest.Crashes(t, vfstest.Script[marksLife]{
		Seeds: 3,
		Run:   func(disk vfs.FS, acked *marksLife) error { return live(disk, acked, 3) },
		Check: func(disk vfs.FS, acked marksLife) (marksLife, error) {
			err := live(disk, &acked, 1)
			return acked, err
		},
	}, nil)
}
