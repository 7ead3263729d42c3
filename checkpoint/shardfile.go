package checkpoint

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"

	"github.com/rowraft/rowraft"
)

// Files is where the files of one checkpoint lie.
type Files interface {
	Open(ctx context.Context, name string) (io.ReadCloser, error)
}

// ReadManifest reads and checks the manifest of the checkpoint in files.
func ReadManifest(ctx context.Context, files Files) (*Manifest, error) {
	b, err := readAll(ctx, files, ManifestFile, maxManifest+256)
	if rowraft.CodeOf(err) == rowraft.CodeNotFound {
		return nil, fmt.Errorf("it is no checkpoint: %w", err)
	}
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
	// Checked while reading, so that a file that grows cannot be read forever.
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

// OpenFile reads one file of a manifest. It is checked at its end: who has seen io.EOF
// has read what the manifest names; before, it may be anything.
func OpenFile(ctx context.Context, files Files, f File) (io.ReadCloser, error) {
	return openSummed(ctx, files, f, nil)
}

// CheckFile reads one file of a manifest and keeps nothing of it.
func CheckFile(ctx context.Context, files Files, f File, read func(int)) (err error) {
	s, err := openSummed(ctx, files, f, read)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	_, err = io.Copy(io.Discard, s)
	return err
}

// ReadFile returns the content of one file of a manifest, checked. It is for
// files that fit memory.
func ReadFile(ctx context.Context, files Files, f File, read func(int)) (b []byte, err error) {
	s, err := openSummed(ctx, files, f, read)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return io.ReadAll(s)
}

// ReadSums returns what the slots of a shard file hold, checked against the manifest.
func ReadSums(ctx context.Context, files Files, p *ShardFile, read func(int)) ([]SlotSum, error) {
	b, err := ReadFile(ctx, files, p.Sums, read)
	if err != nil {
		return nil, err
	}
	shard, applied, sums, err := ParseSums(b)
	if err != nil {
		return nil, fmt.Errorf("file %s: %w", p.Sums.Name, err)
	}
	if shard != p.Shard || applied != p.Applied {
		return nil,
			rowraft.Errorf(rowraft.CodeCorrupt, "file %s: it is of shard %d at index %d, the manifest names %d and %d",
				p.Sums.Name, shard, applied, p.Shard, p.Applied)
	}
	var rows uint64
	var sum Digest
	for _, s := range sums {
		if !p.holds(s.Slot) {
			return nil, rowraft.Errorf(rowraft.CodeCorrupt, "file %s: slot %d is not one of shard %d", p.Sums.Name, s.Slot,
				p.Shard)
		}
		rows += uint64(s.Rows)
		sum = sum.Add(s.Digest)
	}
	if rows != p.Rows || sum != p.Digest {
		return nil,
			rowraft.Errorf(rowraft.CodeCorrupt, "file %s: its slots hold %d rows (digest %x), the manifest names %d (%x)",
				p.Sums.Name, rows, sum, p.Rows, p.Digest)
	}
	return sums, nil
}

// Counters tells the counter that a slot of a table had at a checkpoint; 0 if none.
type Counters func(rowraft.TableID, rowraft.Slot) uint64

// ReadCounters reads the counters that a delta to m needs for slots (ascending) of a cluster of n slots.
//
// Errors: CodePrecondition if the cluster of m has another number of slots.
func ReadCounters(ctx context.Context, files Files, m *Manifest, n rowraft.SlotCount,
	slots []rowraft.Slot) (Counters, error) {
	if m.Slots != n {
		return nil, rowraft.Errorf(rowraft.CodePrecondition,
			"a delta of a cluster of %d slots to a checkpoint of %d slots: write a full checkpoint", n, m.Slots)
	}
	all := make(sumsOf)
	for _, i := range m.shardsWith(slots) {
		sums, err := ReadSums(ctx, files, &m.Shards[i], nil)
		if err != nil {
			return nil, err
		}
		all.add(sums)
	}
	return func(table rowraft.TableID, slot rowraft.Slot) uint64 { return all[slotKey{table, slot}].Counter }, nil
}
