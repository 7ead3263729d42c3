package snapstore

import (
	"log/slog"
	"testing"

	"github.com/rowraft/rowraft/internal/vfs"
)

// TestTheLastSnapshotOfAnIndexIsTheNewest, also after a restart: the machine keeps what that one refers to.
func TestTheLastSnapshotOfAnIndexIsTheNewest(t *testing.T) {
	disk := vfs.NewMem()
	last := ""
	for range 3 {
		s, err := Open(disk, "/snapshots", testOwner, slog.New(slog.DiscardHandler), func(string, error) {})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			last = writeSnapshot(t, s, 9, 1, []byte{1})
			if list, err := s.List(); err != nil || list[0].ID != last {
				t.Fatalf("the newest is %v, %v; want %s", list[0].ID, err, last)
			}
		}
	}
}

// TestTheOutcomeOfASnapshot: a snapshot whose name may not survive a crash is not durable, and a canceled one has none.
func TestTheOutcomeOfASnapshot(t *testing.T) {
	disk := vfs.NewFaulty(vfs.NewMem())
	s, err := Open(disk, "/snapshots", testOwner, slog.New(slog.DiscardHandler), func(string, error) {})
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name           string
		fault          *vfs.DiskFault
		cancel         bool
		named, durable bool
	}{
		{name: "durable", named: true, durable: true},
		{name: "canceled", cancel: true},
		{name: "not synced", fault: &vfs.DiskFault{Ops: []vfs.Op{vfs.OpSync}, Times: 1, Err: "EIO"}},
		{name: "not renamed", fault: &vfs.DiskFault{Ops: []vfs.Op{vfs.OpRename}, Times: 1, Err: "EIO"}},
		{name: "the directory not synced", named: true,
			fault: &vfs.DiskFault{Ops: []vfs.Op{vfs.OpSyncDir}, Path: "snapshots", Times: 1, Err: "EIO"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			k, err := s.Create(1, 5, 1, testConfiguration, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.fault != nil {
				if err := disk.Set(*tc.fault); err != nil {
					t.Fatal(err)
				}
				defer disk.Clear()
			}
			if tc.cancel {
				err = k.Cancel()
			} else {
				err = k.Close()
			}
			if named, durable := Outcome(k); named != tc.named || durable != tc.durable || (err == nil) != (tc.fault == nil) {
				t.Errorf("named %t, durable %t after %v; want %t, %t", named, durable, err, tc.named, tc.durable)
			}
		})
	}
}
