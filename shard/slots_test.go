package shard

import (
	"context"
	"maps"
	"testing"

	"pgregory.net/rapid"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/checkpoint"
	"github.com/rowraft/rowraft/wire"
)

// TestRestoreIntoOtherNumbersOfSlots: a chain of deltas of a cluster with any number of slots, restored into a cluster
// with any other and with other shards, has the same rows and candidates, byte by byte, and the same digest. It trains
// on, and deltas of it can be restored in turn.
func TestRestoreIntoOtherNumbersOfSlots(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newDeltaCluster(t, rt)
		keys := rapid.SliceOfN(rapid.IntRange(0, 300), 1, 40)
		push := func(c *deltaCluster) {
			for range rapid.IntRange(1, 3).Draw(rt, "pushes") {
				c.change(rapid.SampledFrom([]wire.Op{wire.OpPush, wire.OpPush, wire.OpDelete}).Draw(rt, "op"),
					keys.Draw(rt, "keys"))
			}
		}
		name := ""
		for _, next := range []string{"a", "b", "c"}[:rapid.IntRange(1, 3).Draw(rt, "checkpoints")] {
			push(c)
			c.save(next, name, func() {})
			name = next
		}
		for range 2 {
			count := drawSlotCount(rt, "other slots")
			next := c.restored(t, name, count, rapid.IntRange(1, 3).Draw(rt, "shards"), 1)
			want, _ := c.read(name)
			next.save("full", "", func() {})
			if got, _ := next.read("full"); !maps.Equal(got, want) {
				rt.Fatalf("%d slots restored from %d: %d rows and candidates, want %d", count, c.count, len(got), len(want))
			}
			if got, want := next.digest("full"), c.digest(name); got != want {
				rt.Fatalf("%d slots restored from %d: digest %x, want %x", count, c.count, got, want)
			}
			push(next)
			next.save("delta", "full", func() {})
			c, name = next, "delta"
		}
	})
}

// drawSlotCount prefers small counts: the time that a checkpoint takes grows with the number of slots.
func drawSlotCount(rt *rapid.T, label string) rowraft.SlotCount {
	return rowraft.DefaultSlots << rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 4}).Draw(rt, label)
}

// digest returns the digest of all rows of a checkpoint.
func (c *deltaCluster) digest(name string) (sum checkpoint.Digest) {
	m, err := checkpoint.ReadManifest(context.Background(), c.saved[name])
	if err != nil {
		c.rt.Fatal(err)
	}
	for _, p := range m.Shards {
		sum = sum.Add(p.Digest)
	}
	return sum
}
