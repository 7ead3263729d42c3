package node

import (
	"fmt"
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/identity"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
)

// firstBoot does what a server does to its data directory until it is a member of a cluster. A crash in
// between must never leave a directory that the next start refuses.
func firstBoot() vfstest.Script[rowraft.ClusterID] {
	boot := func(disk vfs.FS, acked *rowraft.ClusterID) error {
		d, err := identity.Open(disk, "/data")
		if err != nil {
			return err
		}
		defer d.Close()
		if err := checkLogDir(disk, "/data", d.Identity().Cluster); err != nil {
			return err
		}
		if err := d.Join("c1", []identity.Member{{Node: d.Identity().Node}}); err != nil {
			return err
		}
		*acked = d.Identity().Cluster
		return nil
	}
	return vfstest.Script[rowraft.ClusterID]{
		Seeds: 40,
		Run:   boot,
		Check: func(disk vfs.FS, acked rowraft.ClusterID) (rowraft.ClusterID, error) {
			d, err := identity.Open(disk, "/data")
			if err != nil {
				return acked, err
			}
			was := d.Identity().Cluster
			if err := d.Close(); err != nil {
				return acked, err
			}
			if acked != "" && was != acked {
				return acked, fmt.Errorf("a member of %s came back as one of %q", acked, was)
			}
			err = boot(disk, &acked)
			return acked, err
		},
	}
}

func TestCrashAtEachStepOfTheFirstBoot(t *testing.T) {
	vfstest.Crashes(t, firstBoot(), map[string]string{
		"internal/identity.Open: syncdir /": "checkLogDir makes the same entry durable before Join; internal/identity " +
			"needs it",
		"node.checkLogDir: syncdir /": "identity.Open did it; it comes with MkdirAll",
	})
}
