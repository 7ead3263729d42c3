package raftstore

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

// goldenMarks and goldenTold are built by hand from docs/formats/marks.md and peer.md, with
// checksums of another program.
const (
	goldenMarks = "726f77726166744d" + "0100" + "0000" + "4f000000" +
		"01000000" + "026e32" + "0300000000000000" + "00ffeeddccbbaa99" +
		"01000000" + "0773686172642d30" + "02000000" + "03722d31" + "e803000000000000" + "0c00000000000000" + "03722d32" + "de03000000000000" + "0b00000000000000" +
		"f328198e"
	goldenTold = "1f036fb6" +
		"03722d31" + "026e31" + "e803000000000000" + "0c00000000000000" + "0700000000000000" + "8877665544332211" +
		"03722d32" + "026e32" + "de03000000000000" + "0b00000000000000" + "0300000000000000" + "0900000000000000"
)

func TestMarksGoldenBytes(t *testing.T) {
	file := marksFile{
		nodes:  map[rowraft.NodeID]process{"n2": {3, 0x99aabbccddeeff00}},
		groups: map[string]map[rowraft.ReplicaID]mark{"shard-0": {"r-1": {1000, 12}, "r-2": {990, 11}}},
	}
	want, _ := hex.DecodeString(goldenMarks)
	if got := file.encode(); !bytes.Equal(got, want) {
		t.Errorf("encode(%+v)\n got %x\nwant %x", file, got, want)
	}
	if got, err := decodeMarks(want); err != nil || !reflect.DeepEqual(got, file) {
		t.Errorf("decodeMarks = %+v, %v", got, err)
	}
	list := []told{{"r-1", "n1", mark{1000, 12}, process{7, 0x1122334455667788}}, {"r-2", "n2", mark{990, 11}, process{3, 9}}}
	var b []byte
	for _, one := range list {
		b = appendTold(b, one)
	}
	want, _ = hex.DecodeString(goldenTold)
	if got := sealTold(b); !bytes.Equal(got, want) {
		t.Errorf("sealTold(%+v)\n got %x\nwant %x", list, got, want)
	}
	if got, err := decodeTold(want); err != nil || !reflect.DeepEqual(got, list) {
		t.Errorf("decodeTold = %+v, %v", got, err)
	}
	for i := range want {
		bad := bytes.Clone(want)
		bad[i] ^= 1
		if got, err := decodeTold(bad); err == nil {
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
		{"newer", frame.Seal(marksMagic, marksVersion+1, nil), rowraft.CodeVersionTooNew, 0},
	} {
		if err := vfs.WriteFile(disk, "/"+marksName, tc.raw); err != nil {
			t.Fatal(err)
		}
		m, err := openMarks(disk, "/", slog.New(slog.DiscardHandler))
		if tc.want == 0 && err != nil || tc.want != 0 && rowraft.CodeOf(err) != tc.want || len(m.nodes) != tc.left {
			t.Errorf("%s: %+v, %v", tc.name, m.marksFile, err)
		}
	}
}

// Marks only grow; of two processes with one start the first one counts.
func TestMarksOnlyGrow(t *testing.T) {
	m, err := openMarks(vfs.NewMem(), "/", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	m.raise("g", "r", mark{10, 2})
	m.raise("g", "r", mark{9, 3})
	if got, want := m.of("g", "r"), (mark{10, 3}); got != want {
		t.Errorf("mark %+v, want %+v", got, want)
	}
	m.see("n", process{2, 1})
	m.see("n", process{2, 7})
	m.see("n", process{1, 9})
	if got, want := m.process("n"), (process{2, 1}); got != want {
		t.Errorf("process %+v, want %+v", got, want)
	}
	m.keep("g", func(rowraft.ReplicaID) bool { return false })
	if got := m.of("g", "r"); got != (mark{}) {
		t.Errorf("a replica that left has mark %+v", got)
	}
}

// marksLife is how many flushes returned, and how many were begun.
type marksLife struct{ done, begun uint64 }

// After a crash at any step of a flush the file has the marks of the last flush that returned, or
// later ones, and can be written again.
func TestCrashAtEachStepOfMarks(t *testing.T) {
	live := func(disk vfs.FS, acked *marksLife, flushes int) error {
		m, err := openMarks(disk, "/", slog.New(slog.DiscardHandler))
		if err != nil {
			return err
		}
		if got := m.of("g", "r").index; got < acked.done || got > acked.begun {
			return fmt.Errorf("mark %d, flushed %d to %d", got, acked.done, acked.begun)
		}
		if _, err := disk.Stat("/" + marksName); errors.Is(err, fs.ErrNotExist) && acked.done > 0 {
			return err
		}
		for range flushes {
			acked.begun++
			m.raise("g", "r", mark{index: acked.begun})
			if err := m.flush(); err != nil {
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

func TestRegistryCountsStarts(t *testing.T) {
	disk := vfs.NewMem()
	var seen []process
	for i := range keptNonces + 3 {
		r, err := openRegistry(disk, "/", "c1", "n1")
		if err != nil {
			t.Fatal(err)
		}
		if err := r.begin(); err != nil {
			t.Fatal(err)
		}
		p := r.starts().process()
		if want := uint64(i + 1); p.start != want {
			t.Fatalf("start %d, want %d", p.start, want)
		}
		for _, earlier := range seen {
			if why := r.starts().contradicts(earlier); why != "" {
				t.Fatalf("start %d: an honest peer that saw start %d: %s", p.start, earlier.start, why)
			}
		}
		if why := r.starts().contradicts(process{}); why != "" {
			t.Errorf("a peer that saw none: %s", why)
		}
		if r.starts().contradicts(process{p.start, p.nonce + 1}) == "" || r.starts().contradicts(process{p.start + 1, 5}) == "" {
			t.Errorf("start %d: a peer that saw another process is believed to have seen this one", p.start)
		}
		if i > 0 && r.starts().contradicts(process{p.start - 1, seen[i-1].nonce + 1}) == "" {
			t.Errorf("start %d: a peer that saw another start %d is believed", p.start, p.start-1)
		}
		seen = append(seen, p)
	}
	r, err := openRegistry(disk, "/", "c1", "n1")
	if err != nil {
		t.Fatal(err)
	}
	r.file.Groups = map[string]groupRecord{"a": {Replica: "r", State: stateActive}, "b": {Replica: "s", State: stateRemoved}}
	other := process{100, 1}
	if err := r.beginAfter(other, "a copy"); err != nil {
		t.Fatal(err)
	}
	if r, err = openRegistry(disk, "/", "c1", "n1"); err != nil {
		t.Fatal(err)
	}
	if why := r.starts().contradicts(other); why != "" || r.starts().process().start != 101 {
		t.Errorf("after it began behind start 100: start %d, %q", r.starts().process().start, why)
	}
	if g := r.file.Groups; g["a"].RolledBack == "" || g["b"].RolledBack != "" {
		t.Errorf("groups %+v: want all given up that were not removed", g)
	}
}
