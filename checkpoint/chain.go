package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/rowraft/rowraft"
)

// MaxDeltas is how many deltas may stand on one full checkpoint.
const MaxDeltas = 16

// Link is one checkpoint of a chain.
type Link struct {
	Name     string
	Files    Files
	Manifest *Manifest
}

// Chain is a checkpoint and, if it is a delta, what it stands on: the newest
// first, the last one full.
type Chain []Link

// OpenChain reads the manifests of the checkpoint name and of those that it stands
// on. at are the files of a checkpoint of that name in the same place.
//
// Errors: CodeNotFound if one is missing, or another one has its name; those of
// ReadManifest.
func OpenChain(ctx context.Context, at func(name string) Files, name string) (Chain, error) {
	files := at(name)
	m, err := ReadManifest(ctx, files)
	if err != nil {
		return nil, err
	}
	c := Chain{{name, files, m}}
	for m.Parent != nil {
		if len(c) > MaxDeltas {
			return nil, rowraft.Errorf(rowraft.CodeCorrupt, "checkpoint %s stands on more than %d deltas", name, MaxDeltas)
		}
		delta, parent := c[len(c)-1], m.Parent
		files = at(parent.Name)
		if m, err = ReadManifest(ctx, files); rowraft.CodeOf(err) == rowraft.CodeNotFound {
			return nil, rowraft.Errorf(rowraft.CodeNotFound, "checkpoint %s is a delta to %s, which is missing: %w", delta.Name,
				parent.Name, err)
		} else if err != nil {
			return nil, fmt.Errorf("checkpoint %s is a delta to %s: %w", delta.Name, parent.Name, err)
		}
		if m.ID != parent.ID {
			return nil, rowraft.Errorf(rowraft.CodeNotFound,
				"checkpoint %s is a delta to %s with id %s, which is missing: the one of that name has id %s", delta.Name,
				parent.Name, parent.ID, m.ID)
		}
		if d := delta.Manifest; m.Cluster != d.Cluster || m.Epoch != d.Epoch || m.Slots != d.Slots {
			return nil, rowraft.Errorf(rowraft.CodeCorrupt,
				"checkpoint %s is of cluster %s, table epoch %d, with %d slots, and its parent %s of %s, %d, with %d", delta.Name,
				d.Cluster, d.Epoch, d.Slots, parent.Name, m.Cluster, m.Epoch, m.Slots)
		}
		c = append(c, Link{parent.Name, files, m})
	}
	return c, nil
}

// Manifest is that of the newest, which says what the chain holds.
func (c Chain) Manifest() *Manifest { return c[0].Manifest }

// Bytes is how much a reader of all of it reads: every shard file of every link, and the
// blobs of the newest.
func (c Chain) Bytes() int64 {
	n := int64(0)
	for i := range c.Manifest().Shards {
		for j, l := range c.plan(i) {
			for _, k := range l.streams {
				n += c[j].Manifest.Shards[k].Stream.Bytes
			}
			for _, k := range l.sums {
				n += c[j].Manifest.Shards[k].Sums.Bytes
			}
		}
	}
	for _, b := range c.Manifest().Blobs {
		n += b.File.Bytes
	}
	return n
}

// Candidates estimates how many keys wait for a row: the bytes of a stream that are neither rows nor headers of slots.
// A delta has the candidates of the slots that changed, so the link with the most candidates counts.
//
// Errors: as RecordBytes.
func (c Chain) Candidates() (n uint64, err error) {
	for _, l := range c {
		var all int64
		for _, p := range l.Manifest.Shards {
			all += p.Stream.Bytes
		}
		for _, t := range l.Manifest.Tables {
			size, err := RecordBytes(&t.Schema)
			if err != nil {
				return 0, err
			}
			all -= int64(t.Written)*int64(size) + int64(l.Manifest.Slots)*slotHeaders
		}
		n = max(n, uint64(max(all, 0))/CandidateBytes)
	}
	return n, nil
}

// slotHeaders stand before the rows of a slot, and before its candidates. A slot from which
// rows were removed has 8 bytes more, which count as half a candidate.
const slotHeaders = 2*chunkHeaderSize + rowsHeaderSize + candidatesHeaderSize

// planned is what is read of one link for one shard file of the newest: the streams with
// its slots, and the sums of these and of what the link above has in its streams.
type planned struct{ streams, sums []int }

// plan finds the shard files to read for shard file i. A link whose shards had other slots has
// shard files that are read for several.
func (c Chain) plan(i int) []planned {
	slots := c.Manifest().Shards[i].Slots
	checked := slots
	out := make([]planned, len(c))
	for j, l := range c {
		out[j] = planned{l.Manifest.shardsWith(slots), l.Manifest.shardsWith(checked)}
		checked = nil
		for _, k := range out[j].streams {
			checked = append(checked, l.Manifest.Shards[k].Slots...)
		}
		slices.Sort(checked)
	}
	return out
}

// shardsWith lists the shard files that hold any of slots, which ascend.
func (m *Manifest) shardsWith(slots []rowraft.Slot) (files []int) {
	for i := range m.Shards {
		if overlap(m.Shards[i].Slots, slots) {
			files = append(files, i)
		}
	}
	return files
}

// overlap reports whether two ascending lists have a slot in common. Slots of a shard are mostly consecutive, so the
// ranges of most lists do not meet, and the check takes constant time.
func overlap(a, b []rowraft.Slot) bool {
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[len(a)-1] < b[0], b[len(b)-1] < a[0]:
			return false
		case a[0] == b[0]:
			return true
		case a[0] < b[0]:
			a = a[1:]
		default:
			b = b[1:]
		}
	}
	return false
}

// ReadShard reads shard file i of the newest, merged with what it stands on, and calls
// rows with each block, whose records are valid during the call; it returns what
// the slots hold. Every record has been found to belong to its slot; that a slot
// is complete and right is known when the next one begins, and that the files are
// only when ReadShard returns without an error.
//
// Memory: a chunk of each stream, the keys of one slot that deltas have, and the
// sums of the shard files. read is told of each read of bytes and may be nil.
//
// Errors: CodeCorrupt, CodeVersionTooNew; those of files and of rows.
func (c Chain) ReadShard(ctx context.Context, i int, read func(int),
	rows func(*Block) error) (sums []SlotSum, err error) {
	m := &merge{ctx: ctx, rows: rows, seen: make(map[uint64]uint8)}
	defer func() { err = errors.Join(err, m.close()) }()
	if sums, err = m.open(c, i, read); err != nil {
		return nil, err
	}
	for _, s := range sums {
		if err := m.slot(s); err != nil {
			return nil, err
		}
	}
	return sums, m.end()
}

// LogTime returns the log time of shard file i of the newest checkpoint, as its stream says. Only a reader of the whole
// file has checked it.
func (c Chain) LogTime(ctx context.Context, i int) (_ uint64, err error) {
	name := c.Manifest().Shards[i].Stream.Name
	f, err := c[0].Files.Open(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("file %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	head := make([]byte, headerSize)
	if _, err := io.ReadFull(f, head); err != nil {
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "file %s: its header: %w", name, err)
	}
	h, _, err := parseHeader(head)
	return h.LogTime, err
}

// Verify reads every byte of the chain that is needed and reports the first thing
// wrong: checksums, the place of each row, the digest of each slot recomputed from
// its rows as they are merged, row counts. It needs no cluster.
func (c Chain) Verify(ctx context.Context, read func(int)) (TableRows, error) {
	m, files := c.Manifest(), c[0].Files
	rows := make(TableRows)
	digests := make(map[rowraft.TableID]Digest)
	for i := range m.Shards {
		sums, err := c.ReadShard(ctx, i, read, func(*Block) error { return nil })
		if err != nil {
			return rows, fmt.Errorf("shard %d: %w", m.Shards[i].Shard, err)
		}
		for _, s := range sums {
			rows[s.Table] += uint64(s.Rows)
			digests[s.Table] = digests[s.Table].Add(s.Digest)
		}
	}
	for _, t := range m.Tables {
		if rows[t.Schema.ID] != t.Rows || digests[t.Schema.ID] != t.Digest {
			return rows, rowraft.Errorf(rowraft.CodeCorrupt,
				"table %s: its shard files hold %d rows with digest %x, the manifest names %d with %x", t.Schema.Name,
				rows[t.Schema.ID], digests[t.Schema.ID], t.Rows, t.Digest)
		}
	}
	for _, b := range m.Blobs {
		if err := CheckFile(ctx, files, b.File, read); err != nil {
			return rows, fmt.Errorf("blob %s: %w", b.Name, err)
		}
	}
	return rows, nil
}

// TableRows counts the rows of each table.
type TableRows map[rowraft.TableID]uint64
