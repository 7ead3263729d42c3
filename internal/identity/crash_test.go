package identity

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
)

// birth is an identity that other processes may know.
type birth struct {
	known  bool
	id     Identity
	joined bool // Join returned
}

// birthAndJoin creates a data directory and makes it a member of a cluster.
func birthAndJoin() vfstest.Script[birth] {
	members := func(id Identity) []Member { return []Member{{Node: "other"}, {Node: id.Node}} }
	see := func(disk vfs.FS, acked *birth) error {
		d, err := Open(disk, "/srv/data")
		if err != nil {
			return err
		}
		defer d.Close()
		acked.known, acked.id = true, d.Identity()
		if err := d.Join("c-1", members(acked.id)); err != nil {
			return err
		}
		acked.joined, acked.id = true, d.Identity()
		return nil
	}
	return vfstest.Script[birth]{
		Seeds: 40,
		Run: func(disk vfs.FS, acked *birth) error {
			return see(disk, acked)
		},
		Check: func(disk vfs.FS, acked birth) (birth, error) {
			d, err := Open(disk, "/srv/data")
			if err != nil {
				return acked, err
			}
			id := d.Identity()
			if err := d.Close(); err != nil {
				return acked, err
			}
			switch {
			case acked.known && id.Node != acked.id.Node:
				return acked, fmt.Errorf("node %s came back as %s", acked.id.Node, id.Node)
			case acked.joined && !cmp.Equal(id, acked.id):
				return acked, fmt.Errorf("joined as %+v, came back as %+v", acked.id, id)
			case id.Node == "" || id.Cluster != "" && len(id.Founders) != 2:
				return acked, fmt.Errorf("half an identity: %+v", id)
			}
			err = see(disk, &acked)
			return acked, err
		},
	}
}

func TestCrashAtEachStepOfBirthAndJoin(t *testing.T) { vfstest.Crashes(t, birthAndJoin(), nil) }
