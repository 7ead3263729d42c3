package vfs

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// sector is the unit that a disk writes completely or not at all.
const sector = 512

// Two seeds with a fixed outcome; others are random.
const (
	LoseUnsynced uint64 = 0 // everything that was not synced is lost
	KeepUnsynced uint64 = 1 // everything survives
)

// Crash crashes the machine and returns the disk after a power loss; seed decides the fate of everything
// that was not synced. It may be called again with other seeds, for other outcomes of the same crash.
//
// What was synced survives. Of the changes to a directory since its last SyncDir, each survives completely
// or not at all. Of the writes to a file since its last Sync, any sectors of 512 bytes survive, in the
// version of any of the writes, and the length is that of some moment since.
func (m *Mem) Crash(seed uint64) *Mem {
	c := crash{seed: seed, rng: rand.New(rand.NewPCG(seed, 0x6372617368))}
	return m.reborn(c.entries, c.content)
}

// Kill ends the machine as if its only process died: the returned disk has everything, and what was not
// synced is still not synced.
func (m *Mem) Kill() *Mem {
	return m.reborn(nil, nil)
}

// crash decides what survives a crash.
type crash struct {
	seed uint64
	rng  *rand.Rand
}

// keeps returns a function that reports which of the next n changes survive. A directory or file keeps all,
// none, the first few, or any of them.
func (c *crash) keeps(n int) func(i int) bool {
	switch c.seed {
	case LoseUnsynced:
		return func(int) bool { return false }
	case KeepUnsynced:
		return func(int) bool { return true }
	}
	switch c.rng.IntN(4) {
	case 0:
		return func(int) bool { return false }
	case 1:
		return func(int) bool { return true }
	case 2:
		first := c.rng.IntN(n + 1)
		return func(i int) bool { return i < first }
	}
	return func(int) bool { return c.rng.IntN(2) == 0 }
}

// entries returns the entries that n has after the crash.
func (c *crash) entries(n *memNode) map[string]*memNode {
	out := maps.Clone(n.syncedEntries)
	keep := c.keeps(len(n.changes))
	for i, change := range n.changes {
		if keep(i) {
			applyEntry(out, change)
		}
	}
	return out
}

// content returns the bytes and the length that n has after the crash.
func (c *crash) content(n *memNode) ([]byte, int64) {
	data, size := slices.Clone(n.synced), n.syncedSize
	if len(n.changes) == 0 {
		return data, size
	}
	lengths := len(n.changes) // how many of the changes affect the length
	switch c.seed {
	case LoseUnsynced:
		lengths = 0
	case KeepUnsynced:
	default:
		lengths = c.rng.IntN(lengths + 1)
	}
	keep := c.keeps(len(n.changes))
	for i, change := range n.changes {
		if i < lengths {
			size = change.size
		}
		if change.resized {
			if i < lengths {
				data = cut(data, size)
			}
			continue
		}
		data = c.torn(data, change, keep(i))
	}
	return cut(data, size), size
}

// torn writes the surviving sectors of a write. At random, a write that is kept may lack sectors, and a
// write that is lost may leave some.
func (c *crash) torn(data []byte, w memChange, kept bool) []byte {
	whole := c.seed <= KeepUnsynced || c.rng.IntN(2) == 0
	if whole {
		if !kept {
			return data
		}
		return overwrite(data, w.data, w.offset)
	}
	for from := int64(0); from < int64(len(w.data)); {
		to := min(int64(len(w.data)), (w.offset+from)/sector*sector+sector-w.offset)
		if c.rng.IntN(2) == 0 {
			data = overwrite(data, w.data[from:to], w.offset+from)
		}
		from = to
	}
	return data
}

// reborn stops m and copies its disk. The functions return the content of a directory and of a file after
// the crash. With nil functions, the copy has what the process saw, and the record of what was not synced.
func (m *Mem) reborn(entries func(*memNode) map[string]*memNode, content func(*memNode) ([]byte, int64)) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.down = true
	next := NewMem()
	next.mu.limit = m.mu.limit
	if entries == nil {
		next.mu.root = copyNode(m.mu.root, map[*memNode]*memNode{})
	} else {
		next.mu.root = surviving(m.mu.root, entries, content)
	}
	next.mu.used = next.mu.root.link()
	return next
}

// surviving copies n and everything below it. It visits names in order, so that a seed always has the same result.
func surviving(n *memNode, entries func(*memNode) map[string]*memNode,
	content func(*memNode) ([]byte, int64)) *memNode {
	if !n.dir {
		data, size := content(n)
		return &memNode{data: data, size: size, synced: slices.Clone(data), syncedSize: size}
	}
	out := newMemDir()
	kept := entries(n)
	for _, name := range slices.Sorted(maps.Keys(kept)) {
		out.entries[name] = surviving(kept[name], entries, content)
	}
	out.syncedEntries = maps.Clone(out.entries)
	return out
}

// copyNode copies n and everything that its present and its synced entries refer to.
func copyNode(n *memNode, done map[*memNode]*memNode) *memNode {
	if n == nil {
		return nil
	}
	if c := done[n]; c != nil {
		return c
	}
	c := &memNode{dir: n.dir, data: slices.Clone(n.data), size: n.size, synced: slices.Clone(n.synced),
		syncedSize: n.syncedSize}
	done[n] = c
	c.entries, c.syncedEntries = copyEntries(n.entries, done), copyEntries(n.syncedEntries, done)
	for _, change := range n.changes {
		change.node = copyNode(change.node, done)
		c.changes = append(c.changes, change)
	}
	return c
}

func copyEntries(entries map[string]*memNode, done map[*memNode]*memNode) map[string]*memNode {
	if entries == nil {
		return nil
	}
	out := make(map[string]*memNode, len(entries))
	for name, n := range entries {
		out[name] = copyNode(n, done)
	}
	return out
}

// link marks everything below n as linked and returns its bytes.
func (n *memNode) link() int64 {
	n.linked = true
	total := n.size
	for _, e := range n.entries {
		total += e.link()
	}
	return total
}
