package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
)

// Files is where the files of one checkpoint lie.
type Files interface {
	Open(ctx context.Context, name string) (io.ReadCloser, error)
}

// ReadManifest reads and checks the manifest of the checkpoint in files.
func ReadManifest(ctx context.Context, files Files) (*Manifest, error) {
	b, err := readAll(ctx, files, ManifestFile, maxManifest+256)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", ManifestFile, err)
	}
	return ParseManifest(b)
}

func readAll(ctx context.Context, files Files, name string, most int64) (b []byte, err error) {
	r, err := files.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if b, err = io.ReadAll(io.LimitReader(r, most+1)); err == nil && int64(len(b)) > most {
		err = rowraft.Errorf(rowraft.CodeCorrupt, "it is longer than %d bytes", most)
	}
	return b, err
}

// summed reads a file of the manifest and compares length and SHA-256 at its end.
type summed struct {
	r    io.ReadCloser
	want File
	n    int64
	sum  hash.Hash
	read func(n int) // told of each read; may be nil
}

func openSummed(ctx context.Context, files Files, f File, read func(int)) (*summed, error) {
	r, err := files.Open(ctx, f.Name)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", f.Name, err)
	}
	return &summed{r: r, want: f, sum: sha256.New(), read: read}, nil
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.n += int64(n)
	s.sum.Write(p[:n])
	if s.read != nil {
		s.read(n)
	}
	if s.n > s.want.Bytes {
		return n, s.corrupt("it is longer than the %d bytes that the manifest names", s.want.Bytes)
	}
	if errors.Is(err, io.EOF) {
		if s.n != s.want.Bytes {
			return n, s.corrupt("it has %d bytes, the manifest names %d", s.n, s.want.Bytes)
		}
		if got := s.sum.Sum(nil); [32]byte(got) != s.want.SHA256 {
			return n, s.corrupt("its SHA-256 is %x, the manifest says %x", got, s.want.SHA256)
		}
	}
	return n, err
}

func (s *summed) corrupt(format string, args ...any) error {
	return rowraft.Errorf(rowraft.CodeCorrupt, "file %s: %s", s.want.Name, fmt.Sprintf(format, args...))
}

func (s *summed) Close() error { return s.r.Close() }

// ReadFile returns the content of one file of a manifest, checked. It is for
// files that fit memory: blobs and sums.
func ReadFile(ctx context.Context, files Files, f File, read func(int)) (b []byte, err error) {
	s, err := openSummed(ctx, files, f, read)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return io.ReadAll(s)
}

// ReadSums returns what the slots of a part hold, checked against the manifest.
func ReadSums(ctx context.Context, files Files, m *Manifest, p *Part, read func(int)) ([]SlotSum, error) {
	b, err := ReadFile(ctx, files, p.Sums, read)
	if err != nil {
		return nil, err
	}
	shard, applied, sums, err := ParseSums(b)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", p.Sums.Name, err)
	}
	if shard != p.Shard || applied != p.Applied {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "file %s: it is of shard %d at index %d, the manifest names %d and %d", p.Sums.Name, shard, applied, p.Shard, p.Applied)
	}
	var rows uint64
	var sum Digest
	for _, s := range sums {
		rows += uint64(s.Rows)
		sum = sum.Add(s.Digest)
	}
	if rows != p.Rows || sum != p.Digest {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "file %s: its slots hold %d rows (digest %x), the manifest names %d (%x)", p.Sums.Name, rows, sum, p.Rows, p.Digest)
	}
	return sums, nil
}

// ReadPart reads a whole part and calls rows with each block, whose records are
// valid during the call; it returns what the slots hold. Every record has been
// found to belong to its slot; that the slots are complete and right is known
// only when ReadPart returns without an error.
//
// read is told of each read of bytes and may be nil.
//
// Errors: CodeCorrupt, CodeVersionTooNew; those of files and of rows.
func ReadPart(ctx context.Context, files Files, m *Manifest, p *Part, read func(int), rows func(*Block) error) (sums []SlotSum, err error) {
	sums, err = ReadSums(ctx, files, m, p, read)
	if err != nil {
		return nil, err
	}
	s, err := openSummed(ctx, files, p.Stream, read)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	rd, err := NewReader(s)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", p.Stream.Name, err)
	}
	c := newPartCheck(m, p, sums)
	if err := c.header(rd); err != nil {
		return nil, fmt.Errorf("file %s: %w", p.Stream.Name, err)
	}
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := rd.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = c.block(&b)
		}
		if err != nil {
			return nil, fmt.Errorf("file %s: %w", p.Stream.Name, err)
		}
		if err := rows(&b); err != nil {
			return nil, err
		}
	}
	if err := c.end(rd.Trailer()); err != nil {
		return nil, fmt.Errorf("file %s: %w", p.Stream.Name, err)
	}
	return sums, nil
}

// partCheck compares a stream with the sums of its slots, in the order of both.
type partCheck struct {
	p      *Part
	tables map[rowraft.TableID]tableCheck
	held   [rowraft.NumSlots]bool
	sums   []SlotSum // not yet begun
	slot   SlotSum   // counted of the present one
	want   SlotSum
	open   bool
}

type tableCheck struct {
	schema rowraft.Schema
	seed   uint64
}

func newPartCheck(m *Manifest, p *Part, sums []SlotSum) *partCheck {
	c := &partCheck{p: p, tables: make(map[rowraft.TableID]tableCheck), sums: sums}
	for _, t := range m.Tables {
		c.tables[t.Schema.ID] = tableCheck{schema: t.Schema, seed: clustermap.TableSeed(t.Schema.ID)}
	}
	for _, s := range p.Slots {
		c.held[s] = true
	}
	return c
}

func (c *partCheck) header(rd *Reader) error {
	h := rd.Header()
	if h.Shard != c.p.Shard || h.Applied != c.p.Applied {
		return rowraft.Errorf(rowraft.CodeCorrupt, "it is shard %d at index %d, the manifest names %d and %d", h.Shard, h.Applied, c.p.Shard, c.p.Applied)
	}
	for _, s := range rd.Tables() {
		if t, ok := c.tables[s.ID]; !ok || t.schema != s {
			return rowraft.Errorf(rowraft.CodeCorrupt, "table %s is not one of the manifest", s.Name)
		}
	}
	return nil
}

func (c *partCheck) block(b *Block) error {
	if b.First {
		if err := c.begin(b.Slot); err != nil {
			return err
		}
	}
	t := c.tables[b.Table]
	for rec := b.Records; len(rec) > 0; rec = rec[b.RecordBytes:] {
		key, version := rowraft.Key(le.Uint64(rec[recordKey:])), le.Uint64(rec[recordVersion:])
		slot := clustermap.SlotOfHash(clustermap.Mix64(uint64(t.schema.Kind.PlacementKey(key)) ^ t.seed))
		if slot != b.Slot.Slot || version == 0 || version > b.Counter {
			return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: key %d, version %d, belongs in slot %d and stands in slot %d, whose counter is %d", t.schema.Name, key, version, slot, b.Slot.Slot, b.Counter)
		}
		c.slot.Digest = c.slot.Digest.Add(RecordDigest(rec[:b.RecordBytes]))
	}
	c.slot.Rows += uint32(b.Rows)
	return nil
}

// begin ends the slot before and starts s.
func (c *partCheck) begin(s Slot) error {
	if err := c.close(); err != nil {
		return err
	}
	t, ok := c.tables[s.Table]
	switch {
	case !ok:
		return rowraft.Errorf(rowraft.CodeCorrupt, "it has rows of table %#x, which the manifest does not name", uint64(s.Table))
	case s.RecordBytes < recordNumbers+t.schema.WeightBytes():
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: records of %d bytes are too short for dim %d", t.schema.Name, s.RecordBytes, t.schema.Dim)
	case !c.held[s.Slot]:
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: slot %d is not one of shard %d", t.schema.Name, s.Slot, c.p.Shard)
	case len(c.sums) == 0 || c.sums[0].Table != s.Table || c.sums[0].Slot != s.Slot || c.sums[0].Counter != s.Counter:
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %s: slot %d with counter %d is not what %s names next", t.schema.Name, s.Slot, s.Counter, c.p.Sums.Name)
	}
	c.want, c.sums, c.open = c.sums[0], c.sums[1:], true
	c.slot = SlotSum{Table: s.Table, Slot: s.Slot, Counter: s.Counter}
	return nil
}

func (c *partCheck) close() error {
	if c.open && c.slot != c.want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "table %#x slot %d has %d rows with digest %x, the shard counted %d with %x",
			uint64(c.want.Table), c.want.Slot, c.slot.Rows, c.slot.Digest, c.want.Rows, c.want.Digest)
	}
	c.open = false
	return nil
}

func (c *partCheck) end(t Trailer) error {
	if err := c.close(); err != nil {
		return err
	}
	if len(c.sums) > 0 || t.Rows != c.p.Rows || t.Digest != c.p.Digest {
		return rowraft.Errorf(rowraft.CodeCorrupt, "it has %d rows with digest %x and lacks %d slots; the manifest names %d with %x", t.Rows, t.Digest, len(c.sums), c.p.Rows, c.p.Digest)
	}
	return nil
}

// TableRows counts the rows of each table.
type TableRows map[rowraft.TableID]uint64

// VerifyCheckpoint reads every byte of the checkpoint and reports the first
// thing wrong: checksums, the place of each row, the digest of each slot
// recomputed from its rows, row counts. It needs no cluster.
func VerifyCheckpoint(ctx context.Context, files Files, m *Manifest, read func(int)) (TableRows, error) {
	rows := make(TableRows)
	digests := make(map[rowraft.TableID]Digest)
	for i := range m.Parts {
		sums, err := ReadPart(ctx, files, m, &m.Parts[i], read, func(*Block) error { return nil })
		if err != nil {
			return rows, fmt.Errorf("shard %d: %w", m.Parts[i].Shard, err)
		}
		for _, s := range sums {
			rows[s.Table] += uint64(s.Rows)
			digests[s.Table] = digests[s.Table].Add(s.Digest)
		}
	}
	for _, t := range m.Tables {
		if rows[t.Schema.ID] != t.Rows || digests[t.Schema.ID] != t.Digest {
			return rows, rowraft.Errorf(rowraft.CodeCorrupt, "table %s: its parts hold %d rows with digest %x, the manifest names %d with %x", t.Schema.Name, rows[t.Schema.ID], digests[t.Schema.ID], t.Rows, t.Digest)
		}
	}
	for _, b := range m.Blobs {
		if _, err := ReadFile(ctx, files, b.File, read); err != nil {
			return rows, fmt.Errorf("blob %s: %w", b.Name, err)
		}
	}
	return rows, nil
}
