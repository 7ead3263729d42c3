package raftstore

import (
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/logstore"
	"github.com/rowraft/rowraft/raftstore/snapstore"
)

// fuzzMachine takes any bytes as its state.
type fuzzMachine struct {
	listMachine
	state []byte
}

func (m *fuzzMachine) Restore(r io.Reader) (err error) {
	m.state, err = io.ReadAll(r)
	return err
}

// FuzzMachineSnapshot restores a machine from snapshots with any header.
func FuzzMachineSnapshot(f *testing.F) {
	f.Add([]byte("rowraftS\x00\x00\x00\x00\x00\x00\x00\x00state"), uint64(7))
	f.Add([]byte("rowraftS\x09\x00\x00\x00\x00\x00\x00\x00state"), uint64(7))
	f.Add([]byte("rowraftS\x05\x00\x00\x00\x00\x00\x00\x00state"), uint64(7)) // this machine restores to 0
	f.Add([]byte("rowraftX\x00\x00\x00\x00\x00\x00\x00\x00"), uint64(7))
	f.Add([]byte("rowraftS"), uint64(0))
	dir := f.TempDir()
	s, err := snapstore.Open(vfs.OS, dir, testOwner.String(), slog.New(slog.DiscardHandler), func(string, error) {})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, index uint64) {
		if len(b) == 0 {
			return
		}
		id := saveSnapshot(t, s, index, 3, b)
		defer os.RemoveAll(filepath.Join(dir, id))
		_, r, err := s.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		m := &fuzzMachine{}
		fsm := newFSM(m, logstore.NewLedger(nil), func(error) {}, func(uint64, uint64) {})
		err = fsm.Restore(r)
		switch good := len(b) >= 16 && string(b[:8]) == "rowraftS" && binary.LittleEndian.Uint64(b[8:]) == 0; {
		case good != (err == nil):
			t.Errorf("%x at index %d: %v", b, index, err)
		case err == nil && (string(m.state) != string(b[16:]) || fsm.applied.Load() != index):
			t.Errorf("%x at index %d restored %x at %d", b, index, m.state, fsm.applied.Load())
		case err != nil && fsm.applied.Load() != 0:
			t.Errorf("a refused snapshot moved the index to %d", fsm.applied.Load())
		}
	})
}
