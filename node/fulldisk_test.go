package node

import (
	"testing"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// roomyDisk has much free space or, with a fault of OpFree, none.
type roomyDisk struct{ *vfs.Faulty }

func (d roomyDisk) Free(dir string) (int64, error) {
	free, err := d.Faulty.Free(dir)
	return min(free, 1) << 40, err
}

// TestAFullServerGivesItsLeadsAway: a server with a full disk hands its leaderships to other servers.
// Pushes continue there, and none is lost or applied twice. If every disk is full, pushes wait.
func TestAFullServerGivesItsLeadsAway(t *testing.T) {
	disks := make(map[string]*vfs.Faulty)
	c := startClusterWith(t, 3, 3, func(cfg *Config) {
		disk := vfs.NewFaulty(vfs.OS)
		disks[cfg.Name], cfg.FS = disk, roomyDisk{disk}
	})
	ctx := testutil.Context(t)
	table, err := c.dial().CreateTable(ctx, counterSchema("rows"), false)
	if err != nil {
		t.Fatal(err)
	}
	keys := make([]rowraft.Key, 64) // of every shard
	ones := make([]float32, 4*len(keys))
	for i := range ones {
		keys[i/4], ones[i] = rowraft.Key(1000+i/4), -1
	}
	pushes := float32(0)
	push := func() {
		t.Helper()
		if _, err := table.Push(ctx, keys, ones); err != nil {
			t.Fatal(err)
		}
		pushes++
	}
	push()
	var admins []rowraftv1.ReplicasClient
	for i := range c.nodes {
		admins = append(admins, c.admin(i))
	}
	status := func(i int) *rowraftv1.NodeStatusReply {
		st, err := admins[i].NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	leads := func(i int) (n int) {
		for _, r := range status(i).Replicas {
			if r.Role == "leader" {
				n++
			}
		}
		return n
	}
	full := func(name string) {
		if err := disks[name].Set(vfs.DiskFault{Ops: []vfs.Op{vfs.OpFree}, Err: "ENOSPC"}); err != nil {
			t.Fatal(err)
		}
	}
	who := 0 // a server that leads a shard
	testutil.Eventually(t, "a server leads a shard", func() bool { who = (who + 1) % len(c.nodes); return leads(who) > 0 })
	name := c.nodes[who].cfg.Name
	full(name)
	stopLoad := load(ctx, t, table)
	testutil.Eventually(t, "a server without room leads nothing", func() bool { return leads(who) == 0 })
	push()
	disks[name].Clear()
	pushed, gap := stopLoad()
	t.Logf("%d pushes meanwhile, the longest gap %v", pushed, gap)
	push()

	// If every disk is full, no server can take a leadership, and pushes wait. The scheduler's own changes
	// continue.
	for name := range disks {
		full(name)
	}
	for i := range admins {
		testutil.Eventually(t, "a server sees that there is no room", func() bool {
			d := status(i).Disk
			return d != nil && d.FreeBytes < d.ReserveBytes
		})
	}
	waiting := make(chan error, 1)
	go func() { _, err := table.Push(ctx, keys, ones); waiting <- err }()
	if err := c.onScheduler(ctx, func(s rowraftv1.ClusterClient) error {
		_, err := s.IssueIncarnation(ctx, &rowraftv1.IssueIncarnationRequest{ClientId: make([]byte, 16)})
		return err
	}); err != nil {
		t.Errorf("the scheduler without room: %v", err)
	}
	for _, disk := range disks {
		disk.Clear()
	}
	if err := <-waiting; err != nil {
		t.Errorf("once there is room: %v", err)
	}
	pushes++
	got := make([]float32, len(ones))
	if err := table.Pull(ctx, keys, got); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if v != pushes {
			t.Fatalf("key %d counts %v pushes, %v were acknowledged", keys[i/4], v, pushes)
		}
	}
}
