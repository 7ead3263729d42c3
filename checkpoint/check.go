package checkpoint

import (
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// shardFileCheck compares a stream with the sums of its slots, in the order of both. A
// delta has the slots whose counter is above the parent's, in each the rows whose
// version is, or all of them.
type shardFileCheck struct {
	p      *ShardFile
	delta  bool
	parent sumsOf // of a delta
	tables map[rowraft.TableID]tableCheck
	slots  rowraft.SlotCount // of the cluster
	sums   []SlotSum         // not yet begun
	slot   SlotSum           // counted of the present one
	want   SlotSum
	since  uint64 // versions of the present slot are above it
	whole  bool   // the present slot has all its rows
	open   bool
	total  Digest
	hashes []Digest // of the records of the last block
}

type tableCheck struct {
	schema rowraft.Schema
	seed   uint64
}

// sumsOf finds what a slot held.
type sumsOf map[slotKey]SlotSum

type slotKey struct {
	table rowraft.TableID
	slot  rowraft.Slot
}

func (m sumsOf) add(sums []SlotSum) {
	for _, s := range sums {
		m[slotKey{s.Table, s.Slot}] = s
	}
}

// newShardFileCheck takes what the slots of the parent held, which is nil of a full
// checkpoint.
func newShardFileCheck(m *Manifest, p *ShardFile, sums []SlotSum, parent sumsOf) (*shardFileCheck, error) {
	c := &shardFileCheck{
		p:      p,
		delta:  m.Parent != nil,
		parent: parent,
		tables: make(map[rowraft.TableID]tableCheck),
		sums:   sums,
		slots:  m.Slots,
	}
	for _, t := range m.Tables {
		c.tables[t.Schema.ID] = tableCheck{schema: t.Schema, seed: clustermap.TableSeed(t.Schema.ID)}
	}
	if !c.delta {
		return c, nil
	}
	c.sums = nil
	for _, s := range sums {
		was := parent[slotKey{s.Table, s.Slot}]
		switch {
		case was.Counter > s.Counter, was.Counter == s.Counter && was != s:
			return nil, rowraft.Errorf(rowraft.CodeCorrupt,
				"file %s: table %#x slot %d has %d rows, counter %d and digest %x, the parent %d, %d and %x",
				p.Sums.Name, uint64(s.Table), s.Slot, s.Rows, s.Counter, s.Digest, was.Rows, was.Counter, was.Digest)
		case was.Counter < s.Counter:
			c.sums = append(c.sums, s)
		}
	}
	return c, nil
}

// holds reports whether slot is one of the slots of p.
func (p *ShardFile) holds(slot rowraft.Slot) bool {
	_, ok := slices.BinarySearch(p.Slots, slot)
	return ok
}

func (c *shardFileCheck) header(rd *Reader) error {
	h := rd.Header()
	if h.Shard != c.p.Shard || h.Applied != c.p.Applied || h.Delta != c.delta {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"it is shard %d at index %d, a delta: %v; the manifest names %d, %d and %v", h.Shard, h.Applied, h.Delta, c.p.Shard,
			c.p.Applied, c.delta)
	}
	for _, s := range rd.Tables() {
		if t, ok := c.tables[s.ID]; !ok || t.schema != s {
			return rowraft.Errorf(rowraft.CodeCorrupt, "table %s is not one of the manifest", s.Name)
		}
	}
	return nil
}

func (c *shardFileCheck) block(b *Block) error {
	if b.First {
		if err := c.begin(b.Slot); err != nil {
			return err
		}
	}
	t := c.tables[b.Table]
	for w := b.Candidates; len(w) > 0; w = w[candidateSize:] {
		if slot := clustermap.SlotOfHash(clustermap.Mix64(le.Uint64(w)^t.seed), c.slots); slot != b.Slot.Slot {
			return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: candidate %d belongs in slot %d and stands in slot %d",
				t.schema.Name, le.Uint64(w), slot, b.Slot.Slot)
		}
		c.slot.Digest = c.slot.Digest.Add(CandidateDigest(w[:candidateSize]))
	}
	c.hashes = c.hashes[:0]
	for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
		key, version := rowraft.Key(le.Uint64(rec[recordKey:])), le.Uint64(rec[recordVersion:])
		slot := clustermap.SlotOfHash(clustermap.Mix64(uint64(t.schema.Kind.PlacementKey(key))^t.seed), c.slots)
		if slot != b.Slot.Slot || version <= c.since || version > b.Counter {
			return rowraft.Errorf(rowraft.CodeCorrupt,
				"table %s: key %d, version %d, belongs in slot %d and stands in slot %d, whose versions are %d to %d",
				t.schema.Name, key, version, slot, b.Slot.Slot, c.since+1, b.Counter)
		}
		h := RecordDigest(rec[:b.RecordBytes])
		c.hashes = append(c.hashes, h)
		c.slot.Digest = c.slot.Digest.Add(h)
	}
	c.slot.Rows += uint32(b.Rows)
	return nil
}

// begin ends the slot before and starts s.
func (c *shardFileCheck) begin(s Slot) error {
	if err := c.close(); err != nil {
		return err
	}
	t, ok := c.tables[s.Table]
	switch {
	case !ok:
		return rowraft.Errorf(rowraft.CodeCorrupt, "it has rows of table %#x, which the manifest does not name",
			uint64(s.Table))
	case s.RecordBytes < recordNumbers+t.schema.WeightBytes():
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: records of %d bytes are too short for dim %d", t.schema.Name,
			s.RecordBytes, t.schema.Dim)
	case !c.p.holds(s.Slot):
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: slot %d is not one of shard %d", t.schema.Name, s.Slot,
			c.p.Shard)
	case len(c.sums) == 0 || c.sums[0].Table != s.Table || c.sums[0].Slot != s.Slot || c.sums[0].Counter != s.Counter:
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: slot %d with counter %d is not what %s names next",
			t.schema.Name, s.Slot, s.Counter, c.p.Sums.Name)
	}
	c.want, c.sums, c.open = c.sums[0], c.sums[1:], true
	c.slot = SlotSum{Table: s.Table, Slot: s.Slot, Counter: s.Counter}
	c.since, c.whole = 0, !c.delta || s.Whole
	if !c.whole {
		c.since = c.parent[slotKey{s.Table, s.Slot}].Counter
	}
	if !c.whole && (c.since == 0 || s.Removed > c.since) {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"table %s: slot %d lacks rows; its parent has version %d of it, and rows were removed at %d", t.schema.Name, s.Slot,
			c.since, s.Removed)
	}
	return nil
}

func (c *shardFileCheck) close() error {
	if !c.open {
		return nil
	}
	c.open = false
	c.total = c.total.Add(c.slot.Digest)
	if c.whole && c.slot != c.want {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"table %#x slot %d has %d rows with digest %x, the shard counted %d with %x",
			uint64(c.want.Table), c.want.Slot, c.slot.Rows, c.slot.Digest, c.want.Rows, c.want.Digest)
	}
	return nil
}

func (c *shardFileCheck) end(t Trailer) error {
	if err := c.close(); err != nil {
		return err
	}
	if len(c.sums) > 0 || t.Rows != c.p.Written || t.Digest != c.total || !c.delta && t.Digest != c.p.Digest {
		return rowraft.Errorf(rowraft.CodeCorrupt,
			"it has %d rows with digest %x (its trailer says %x) and lacks %d slots; the manifest names %d rows, and %x of all",
			t.Rows, c.total, t.Digest, len(c.sums), c.p.Written, c.p.Digest)
	}
	return nil
}
