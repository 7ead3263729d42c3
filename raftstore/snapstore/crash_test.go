package snapstore

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
)

// snapLife has the index of the newest snapshot whose Close returned, and of the one that is being written.
type snapLife struct{ done, pending uint64 }

func stateAt(index uint64) []byte {
	return bytes.Repeat(fmt.Appendf(nil, "%8d", index), 300)
}

// open returns the store after it has read all snapshots that it lists.
func (l *snapLife) open(disk vfs.FS) (*Store, error) {
	var bad error
	s, err := Open(disk, "/g/snapshots", testOwner, slog.New(slog.DiscardHandler), func(id string, err error) {
		bad = errors.Join(bad, fmt.Errorf("snapshot %s: %w", id, err))
	})
	if err != nil {
		return nil, err
	}
	list, err := s.List()
	if err != nil {
		return nil, err
	}
	newest := uint64(0)
	for _, m := range list {
		newest = max(newest, m.Index)
		_, r, err := s.Open(m.ID)
		if err != nil {
			return nil, err
		}
		b, err := io.ReadAll(r)
		if err := errors.Join(err, r.Close()); err != nil {
			return nil, err
		}
		if !bytes.Equal(b, stateAt(m.Index)) {
			bad = errors.Join(bad, fmt.Errorf("snapshot %s has another state", m.ID))
		}
	}
	if newest != l.done && newest != l.pending {
		bad = errors.Join(bad, fmt.Errorf("the newest snapshot is of entry %d, acknowledged is %d, being written is %d",
			newest, l.done, l.pending))
	}
	if bad == nil {
		l.done = newest
	}
	return s, bad
}

// take writes n snapshots.
func (l *snapLife) take(s *Store, n int) error {
	for range n {
		l.pending = l.done + 1
		sink, err := s.Create(1, l.pending, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			return err
		}
		if _, err := sink.Write(stateAt(l.pending)); err != nil {
			return errors.Join(err, sink.Cancel())
		}
		if err := sink.Close(); err != nil {
			return err
		}
		l.done = l.pending
	}
	return nil
}

func snapshotScript() vfstest.Script[snapLife] {
	life := func(disk vfs.FS, l *snapLife, n int) error {
		s, err := l.open(disk)
		if err != nil {
			return err
		}
		return l.take(s, n)
	}
	return vfstest.Script[snapLife]{
		Disk: func() *vfs.Mem {
			d := vfs.NewMem()
			if d.Mkdir("/g") != nil || d.SyncDir("/") != nil {
				panic("an empty disk took no directory")
			}
			return d
		},
		Seeds: 6,
		Run:   func(disk vfs.FS, acked *snapLife) error { return life(disk, acked, 3) },
		Check: func(disk vfs.FS, acked snapLife) (snapLife, error) {
			was := acked.done
			s, err := acked.open(disk)
			if err == nil && acked.done == was { // otherwise check that the snapshot that was found remains
				err = acked.take(s, 1)
			}
			return acked, err
		},
	}
}

func TestCrashAtEachStepOfSnapshots(t *testing.T) {
	vfstest.Crashes(t, snapshotScript(), map[string]string{
		"raftstore/snapstore.Open: syncdir /": "the group's directory is durable before; it comes with MkdirAll",
	})
}
