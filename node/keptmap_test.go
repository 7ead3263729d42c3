package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/internal/allocs"
	"github.com/rowraft/rowraft/internal/rpc"
	"github.com/rowraft/rowraft/internal/testutil"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/internal/vfs/vfstest"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
)

// startWithScheduler starts a scheduler as node 0, in a separate process, and servers that hold three
// replicas of one shard.
func startWithScheduler(t testing.TB, servers int) *testCluster {
	i := 0
	return startClusterWith(t, 1+servers, 1, func(cfg *Config) {
		cfg.Join, cfg.Servers, cfg.Profile = cfg.Join[:1], servers, "default"
		cfg.WithScheduler, cfg.SchedulerOnly = i == 0, i == 0
		i++
	})
}

// All servers restart while the scheduler is away. They serve reads and pushes from the stored map, and get
// the next map when the scheduler is back.
func TestServersRestartWithoutTheScheduler(t *testing.T) {
	c := startWithScheduler(t, 3)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	push := func() {
		t.Helper()
		if _, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1}); err != nil {
			t.Fatal(err)
		}
	}
	push()
	for _, n := range c.nodes[1:] {
		testutil.Eventually(t, n.cfg.Name+" has kept the map with the table", func() bool {
			m, err := readKeptMap(vfs.OS, n.cfg.DataDir)
			return err == nil && m != nil && len(m.Tables) == 1
		})
	}
	for i := range c.nodes {
		c.stopNode(i)
	}
	for _, n := range c.nodes[1:] {
		n.start(t)
	}
	for _, n := range c.nodes[1:] {
		n.awaitReady(t)
	}
	push()
	var got [4]float32
	if err := table.Pull(ctx, []rowraft.Key{7}, got[:]); err != nil || got[0] != 2 {
		t.Errorf("the row holds %v after 2 pushes (%v)", got[0], err)
	}
	c.restart(0)
	if _, err := cl.CreateTable(ctx, counterSchema("later"), false); err != nil {
		t.Errorf("create a table when the scheduler is back: %v", err)
	}
	for _, n := range c.nodes[1:] {
		testutil.Eventually(t, n.cfg.Name+" has kept the map with the later table", func() bool {
			m, err := readKeptMap(vfs.OS, n.cfg.DataDir)
			return err == nil && m != nil && len(m.Tables) == 2
		})
	}
}

// A member of the scheduler that finds no majority of the group starts its replicas, too.
func TestAServerRestartsWithoutTheMetadataGroup(t *testing.T) {
	i := 0
	c := startClusterWith(t, 4, 1, func(cfg *Config) { // the last one is no founder; replicas are on n1, n2, n3
		cfg.Join = cfg.Join[:3]
		cfg.WithScheduler = i < 3
		i++
	})
	ctx := testutil.Context(t)
	testutil.Eventually(t, "every server has kept a map with shards", func() bool {
		return !slices.ContainsFunc(c.nodes, func(n *testNode) bool {
			m, err := readKeptMap(vfs.OS, n.cfg.DataDir)
			return err != nil || m == nil || len(m.Shards) == 0
		})
	})
	for i := range c.nodes {
		c.stopNode(i)
	}
	c.restart(0)
	reply, err := c.admin(0).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
	if err != nil || len(reply.GetReplicas()) != 1 {
		t.Errorf("alone it runs %v (%v), want its replica of the shard", reply.GetReplicas(), err)
	}
}

// A server restarts with a map from before its shard moved away, while no server can give it a newer map.
// It starts the replica, but the group accepts neither its votes nor its entries.
func TestAnOldMapServesNothingThatMoved(t *testing.T) {
	c := startWithScheduler(t, 4)
	cl, ctx := c.dial(), testutil.Context(t)
	table, err := cl.CreateTable(ctx, counterSchema("user"), false)
	if err != nil {
		t.Fatal(err)
	}
	index := func(id rowraft.NodeID) int {
		node, ok := cl.Map().Node(id)
		if !ok {
			t.Fatalf("no node %s", id)
		}
		return slices.IndexFunc(c.nodes, func(n *testNode) bool { return n.cfg.Name == node.Name })
	}
	var members []int
	for _, r := range cl.Map().Shards[0].Replicas {
		members = append(members, index(r.Node))
	}
	spare := slices.IndexFunc(c.nodes, func(n *testNode) bool {
		return !n.cfg.WithScheduler && !slices.ContainsFunc(members, func(i int) bool { return c.nodes[i] == n })
	})
	old, left := members[0], members[1:]
	testutil.Eventually(t, "the server has kept a map", func() bool {
		m, err := readKeptMap(vfs.OS, c.nodes[old].cfg.DataDir)
		return err == nil && m != nil && len(m.Shards) == 1
	})
	c.stopNode(old)
	mv, err := c.startMove(ctx, 0, c.nodes[old].cfg.Name, c.nodes[spare].cfg.Name)
	for err != nil && rowraft.CodeOf(err).Retryable() && ctx.Err() == nil { // the spare server has not reported yet
		mv, err = c.startMove(ctx, 0, c.nodes[old].cfg.Name, c.nodes[spare].cfg.Name)
	}
	if err != nil {
		t.Fatal(err)
	}
	if end := c.ended(ctx, mv.Id); end.Phase != rowraftv1.MovePhase_MOVE_PHASE_DONE {
		t.Fatalf("move %v", end)
	}
	push := func() error {
		_, err := table.Push(ctx, []rowraft.Key{7}, []float32{-1, -1, -1, -1})
		return err
	}
	if err := push(); err != nil {
		t.Fatal(err)
	}
	c.stopNode(0)       // the scheduler
	c.stopNode(spare)   // the majority of the current voters is gone
	c.stopNode(left[0]) // but the old replica and left[1] were a majority once
	c.restart(old)
	conn := connect(t, c.nodes[old].addr, nil)
	testutil.Eventually(t, "the old replica runs", func() bool {
		st, err := c.admin(old).NodeStatus(ctx, &rowraftv1.NodeStatusRequest{})
		return err == nil && len(st.Replicas) == 1
	})
	refused := func() {
		t.Helper()
		_, err := rowraftv1.NewTableClient(conn).Pull(ctx, &rowraftv1.PullRequest{MapVersion: anyMapVersion})
		if code := rowraft.CodeOf(rpc.FromStatus(err)); code != rowraft.CodeNoLeader && code != rowraft.CodeNotLeader {
			t.Errorf("a pull from the replica that left: %v, want that it does not lead", err)
		}
	}
	refused()
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if _, err := table.Push(short, []rowraft.Key{8}, []float32{1, 1, 1, 1}); err == nil {
		t.Error("a push was acknowledged by one member of three and a replica that left")
	}
	c.restart(left[0])
	if err := push(); err != nil {
		t.Fatal(err)
	}
	refused()
	c.restart(0)
	testutil.Eventually(t, "the replica that left is deleted", func() bool {
		_, err := os.Stat(c.groupDir(c.nodes[old].cfg.Name, 0))
		return errors.Is(err, os.ErrNotExist)
	})
	var got [4]float32
	if err := table.Pull(ctx, []rowraft.Key{7}, got[:]); err != nil || got[0] != 2 {
		t.Errorf("the row holds %v after 2 pushes (%v)", got[0], err)
	}
}

// keptExample is the map of testdata/clustermap.bin.
func keptExample(t testing.TB, version rowraft.MapVersion) *clustermap.Map {
	t.Helper()
	replica := func(i int) clustermap.Replica {
		return clustermap.Replica{ID: rowraft.ReplicaID(fmt.Sprintf("r-%d", i)), Node: rowraft.NodeID(fmt.Sprintf("n-%d", i))}
	}
	m, err := clustermap.New(clustermap.Map{
		Cluster: "c-1", Version: version, SlotsVersion: 2, Epoch: 4,
		Nodes: []clustermap.Node{{ID: "n-1", Name: "s1", Addr: "h:1", PeerAddr: "p:1", Scheduler: true},
			{ID: "n-2", Name: "s2", Addr: "h:2", PeerAddr: "p:2"}},
		Shards: []clustermap.Shard{{
			Replicas: []clustermap.Replica{replica(1), replica(2)},
			Removed:  []clustermap.Removed{{Replica: replica(3), Version: 8}}, Changes: 1,
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestGoldenKeptMap(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "clustermap.bin"))
	if err != nil {
		t.Fatal(err)
	}
	want := keptExample(t, 300)
	got, err := decodeKeptMap(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(clustermap.Map{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("the golden file reads otherwise (-want +got):\n%s", diff)
	}
	if again, err := encodeKeptMap(want); err != nil || !bytes.Equal(again, golden) {
		t.Errorf("the map encodes to %d other bytes (%v)", len(again), err)
	}
	later := bytes.Clone(golden)
	later[4] = keptMapVersion + 1
	if _, err := decodeKeptMap(later); rowraft.CodeOf(err) != rowraft.CodeVersionTooNew {
		t.Errorf("a later version: %v, want CodeVersionTooNew", err)
	}
}

func TestEveryFlippedBitOfTheKeptMapIsFound(t *testing.T) {
	golden, err := os.ReadFile(filepath.Join("testdata", "clustermap.bin"))
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(golden) {
		b := bytes.Clone(golden)
		b[bit/8] ^= 1 << (bit % 8)
		if m, err := decodeKeptMap(b); err == nil {
			t.Fatalf("with bit %d flipped it reads %+v", bit, m)
		}
	}
	for n := range golden {
		if _, err := decodeKeptMap(golden[:n]); err == nil {
			t.Fatalf("cut to %d bytes it is read", n)
		}
	}
}

// FuzzKeptMap: a map that decodes encodes and decodes to the same map. A refusal is Corrupt or too new.
// With fix set, the test corrects length and checksum first.
func FuzzKeptMap(f *testing.F) {
	golden, err := os.ReadFile(filepath.Join("testdata", "clustermap.bin"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(golden, false)
	f.Add(golden, true)
	f.Add(golden[:200], true)
	f.Add(golden[:12], true)
	f.Fuzz(func(t *testing.T, raw []byte, fix bool) {
		if fix && len(raw) >= keptMapHead {
			raw = bytes.Clone(raw)
			binary.LittleEndian.PutUint32(raw[8:], uint32(len(raw)-keptMapHead))
			binary.LittleEndian.PutUint32(raw[12:], crc32.Update(crc32.Checksum(raw[:12], castagnoli), castagnoli,
				raw[keptMapHead:]))
		}
		var m *clustermap.Map
		var err error
		if n := allocs.Bytes(func() { m, err = decodeKeptMap(raw) }); n > 1<<20+64*uint64(len(raw)) {
			t.Errorf("%d bytes made it allocate %d", len(raw), n)
		}
		if err != nil {
			if code := rowraft.CodeOf(err); code != rowraft.CodeCorrupt && code != rowraft.CodeVersionTooNew {
				t.Errorf("%v has code %v", err, code)
			}
			return
		}
		out, err := encodeKeptMap(m)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeKeptMap(out)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(m, again, cmp.AllowUnexported(clustermap.Map{}), cmpopts.EquateEmpty(),
			cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("written and read again (-first +second):\n%s", diff)
		}
	})
}

// At whatever moment a crash happens, the directory has the last stored map, or the newer one that was
// being written.
func TestCrashAtEachStepOfKeepingTheMap(t *testing.T) {
	const last = 4
	keep := func(disk vfs.FS, acked *rowraft.MapVersion) error {
		for v := *acked + 1; v <= last; v++ {
			if err := writeKeptMap(disk, "/data", keptExample(t, v)); err != nil {
				return err
			}
			*acked = v
		}
		return nil
	}
	vfstest.Crashes(t, vfstest.Script[rowraft.MapVersion]{
		Disk: func() *vfs.Mem {
			disk := vfs.NewMem()
			if err := vfs.MkdirAll(disk, "/data"); err != nil {
				t.Fatal(err)
			}
			return disk
		},
		Seeds: 20,
		Run:   keep,
		Check: func(disk vfs.FS, acked rowraft.MapVersion) (rowraft.MapVersion, error) {
			if err := disk.SyncDir("/data"); err != nil { // identity.Open syncs it before the map is read
				return acked, err
			}
			m, err := readKeptMap(disk, "/data")
			if err != nil {
				return acked, err
			}
			have := rowraft.MapVersion(0)
			if m != nil {
				have = m.Version
			}
			if have < acked {
				return acked, fmt.Errorf("map %d was kept, map %d is there", acked, have)
			}
			acked = have
			return acked, keep(disk, &acked)
		},
	}, nil)
}
