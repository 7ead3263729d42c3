package snapstore

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// The files of a snapshot; docs/formats/snapshot-store.md is the specification.
const (
	dataMagic    = "rowraftD"
	metaMagic    = "rowraftM"
	version      = 1 // of both files, which have the same
	chunkBytes   = 256 << 10
	chunkHead    = 8
	keep         = 2
	maxMetaBytes = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store keeps the snapshots of one group, a directory each. Safe for concurrent use: raft may receive one snapshot
// while it sends another and the state machine writes a third.
//
// Lock order: names before mu. Only names is held across I/O.
type Store struct {
	disk vfs.FS
	dir  string
	// owner is the replica that all snapshots belong to, as their metas state it. "": List does not check it.
	owner string
	log   *slog.Logger
	// corrupt is called once for each snapshot that fails a check, without a lock.
	corrupt func(id string, err error)

	// stopping makes writes to sinks fail. Without it raft could not end before a long snapshot is written.
	stopping atomic.Bool

	// names is held for reading while the directory is listed and its metas are read, and for writing while names are
	// removed. Without it a snapshot that is removed in between would look corrupt.
	names sync.RWMutex

	mu  sync.Mutex
	bad map[string]bool // guarded by mu: IDs that failed a check since Open
}

var _ raft.SnapshotStore = (*Store)(nil)

// Open opens the store in dir, which it creates if necessary, and removes the unfinished snapshots of a crash. corrupt
// is called once for each snapshot that fails a check.
func Open(disk vfs.FS, dir, owner string, log *slog.Logger, corrupt func(string, error)) (*Store, error) {
	if err := vfs.MkdirAll(disk, dir); err != nil {
		return nil, err
	}
	// An earlier process may have died right after it renamed a snapshot. The log is cut for the snapshots that List
	// returns, so their names must be durable first.
	if err := disk.SyncDir(dir); err != nil {
		return nil, err
	}
	entries, err := disk.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		if err := vfs.RemoveAll(disk, filepath.Join(dir, e.Name())); err != nil {
			return nil, err
		}
	}
	return &Store{disk: disk, dir: dir, owner: owner, log: log, corrupt: corrupt, bad: map[string]bool{}}, nil
}

// OpenForReading returns the store in dir without changing anything there. The snapshots may be of any owner.
func OpenForReading(disk vfs.FS, dir string, log *slog.Logger, corrupt func(id string, err error)) *Store {
	return &Store{disk: disk, dir: dir, log: log, corrupt: corrupt, bad: map[string]bool{}}
}

// meta is the JSON in a meta file.
type meta struct {
	Raft   raft.SnapshotMeta `json:"raft"`
	Chunks int64             `json:"chunks"`
	Owner  string            `json:"owner"`
	// Full is how many bytes of state the snapshot has without references to files; 0: it has none.
	Full int64 `json:"full,omitempty"`
}

// List returns the good snapshots, newest first.
//
// Errors: CodeIdentity if one belongs to another owner; CodeVersionTooNew; errors of the disk.
func (s *Store) List() ([]*raft.SnapshotMeta, error) {
	s.names.RLock()
	defer s.names.RUnlock()
	entries, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	var out []*raft.SnapshotMeta
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), ".tmp") || s.isBad(e.Name()) {
			continue
		}
		m, err := readMeta(s.disk, filepath.Join(s.dir, e.Name()))
		if err != nil {
			if rowraft.CodeOf(err) == rowraft.CodeVersionTooNew {
				return nil, err // an older one would bring back older state
			}
			s.markBad(e.Name(), err)
			continue
		}
		if m.Raft.ID != e.Name() {
			s.markBad(e.Name(), rowraft.Errorf(rowraft.CodeCorrupt, "meta file is of snapshot %s", m.Raft.ID))
			continue
		}
		if s.owner != "" && m.Owner != s.owner {
			return nil, rowraft.Errorf(rowraft.CodeIdentity, "snapshot %s in %s belongs to %s; it is opened as that of %s: "+
				"the files of two replicas were exchanged, or copied; put each back in its place, or remove the replica from its "+
				"group and add a new one",
				e.Name(), s.dir, cmp.Or(m.Owner, "no replica"), s.owner)
		}
		out = append(out, &m.Raft)
	}
	slices.SortFunc(out, func(a, b *raft.SnapshotMeta) int {
		return compare(b, a)
	})
	return out, nil
}

func compare(a, b *raft.SnapshotMeta) int {
	return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Term, b.Term), strings.Compare(a.ID, b.ID))
}

// Time returns when a snapshot was written to this disk.
func (s *Store) Time(id string) (time.Time, error) {
	info, err := s.disk.Stat(filepath.Join(s.dir, id, "meta"))
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// NewestIndex returns the highest index in the name of any snapshot, good or damaged; 0 if there is none.
func (s *Store) NewestIndex() (uint64, error) {
	entries, err := s.disk.ReadDir(s.dir)
	if err != nil {
		return 0, err
	}
	var newest uint64
	for _, e := range entries {
		head, _, dashed := strings.Cut(e.Name(), "-")
		if i, err := strconv.ParseUint(head, 10, 64); err == nil && dashed && !strings.HasSuffix(e.Name(), ".tmp") {
			newest = max(newest, i)
		}
	}
	return newest, nil
}

// SetStopping makes all writes to sinks fail, or permits them again.
func (s *Store) SetStopping(stopping bool) { s.stopping.Store(stopping) }

// IsStopping reports whether writes to sinks fail.
func (s *Store) IsStopping() bool { return s.stopping.Load() }

func (s *Store) isBad(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bad[id]
}

func (s *Store) markBad(id string, err error) {
	s.mu.Lock()
	known := s.bad[id]
	s.bad[id] = true
	s.mu.Unlock()
	if known {
		return
	}
	s.log.Error("corrupt snapshot is skipped; its files are kept for inspection", "snapshot", id, "dir", s.dir, "err", err)
	s.corrupt(id, err)
}

// Open returns a reader that checks each chunk before it passes it on.
func (s *Store) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	dir := filepath.Join(s.dir, id)
	m, err := readMeta(s.disk, dir)
	if err != nil {
		s.markBad(id, err)
		return nil, nil, err
	}
	f, err := s.disk.OpenFile(filepath.Join(dir, "data"), os.O_RDONLY)
	if err != nil {
		s.markBad(id, err)
		return nil, nil, err
	}
	r := &reader{store: s, meta: m.Raft, chunks: m.Chunks, full: m.Full, f: f, br: bufio.NewReaderSize(f, 64<<10)}
	if err := r.readHeader(); err != nil {
		f.Close()
		s.markBad(id, err)
		return nil, nil, err
	}
	return &r.meta, r, nil
}

// reap removes all but the newest keep good snapshots, and the bad ones that are older than those.
func (s *Store) reap() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	if len(list) <= keep {
		return nil
	}
	var old []string
	for _, m := range list[keep:] {
		old = append(old, m.ID)
	}
	s.mu.Lock()
	for id := range s.bad {
		if id < list[keep-1].ID { // IDs sort by index
			old = append(old, id)
			delete(s.bad, id)
		}
	}
	s.mu.Unlock()
	return s.remove(old)
}

// remove durably removes the names of snapshots before it removes their files. So a crash leaves no incomplete snapshot
// under its name.
func (s *Store) remove(ids []string) error {
	if err := s.hide(ids); err != nil {
		return err
	}
	if err := s.disk.SyncDir(s.dir); err != nil {
		return err
	}
	for _, id := range ids {
		if err := vfs.RemoveAll(s.disk, filepath.Join(s.dir, id+".tmp")); err != nil {
			return err
		}
	}
	return nil
}

// hide renames snapshots to names that List ignores and that Open removes.
func (s *Store) hide(ids []string) error {
	s.names.Lock()
	defer s.names.Unlock()
	for _, id := range ids {
		if err := s.disk.Rename(filepath.Join(s.dir, id), filepath.Join(s.dir, id+".tmp")); err != nil {
			return err
		}
	}
	return nil
}

func readMeta(disk vfs.FS, dir string) (*meta, error) {
	path := filepath.Join(dir, "meta")
	f, err := disk.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "open snapshot meta: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMetaBytes+1))
	if err != nil {
		return nil, err
	}
	body, err := frame.Open(b, metaMagic, version)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var m meta
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "%s: %w", path, err)
	}
	return &m, nil
}

// chunkCRC returns the checksum of a chunk. It includes the place of the chunk, so that it fails for swapped chunks and
// for chunks of another snapshot.
func chunkCRC(index, term uint64, chunk int64, data []byte) uint32 {
	var place [24]byte
	binary.LittleEndian.PutUint64(place[0:], index)
	binary.LittleEndian.PutUint64(place[8:], term)
	binary.LittleEndian.PutUint64(place[16:], uint64(chunk))
	return crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, data)
}

// reader returns the payload of a snapshot, and checks each chunk before it returns any of its bytes. Used by one
// goroutine.
type reader struct {
	store  *Store
	meta   raft.SnapshotMeta
	chunks int64
	full   int64

	f    vfs.File
	br   *bufio.Reader
	buf  []byte // chunk in memory
	off  int    // bytes of buf that Read has returned
	next int64  // number of the chunk to read next
	sent int64  // payload bytes in the chunks read so far
	// err is the first error, io.EOF included. Read returns it from then on.
	err error
}

func (r *reader) readHeader() error {
	var h [frame.HeadBytes]byte
	if _, err := io.ReadFull(r.br, h[:]); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s: read data header: %w", r.meta.ID, err)
	}
	if want := dataHeader(r.meta.Index, r.meta.Term); h != want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s: data header is %x, want %x", r.meta.ID, h, want)
	}
	return nil
}

// dataHeader returns the first bytes of a data file. All of them follow from the meta file.
func dataHeader(index, term uint64) (h [frame.HeadBytes]byte) {
	copy(h[:], dataMagic)
	binary.LittleEndian.PutUint16(h[8:], version)
	var place [16]byte
	binary.LittleEndian.PutUint64(place[0:], index)
	binary.LittleEndian.PutUint64(place[8:], term)
	binary.LittleEndian.PutUint32(h[12:], crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, h[:12]))
	return h
}

func (r *reader) Read(p []byte) (int, error) {
	for r.off == len(r.buf) {
		if r.err == nil {
			r.err = r.readChunk()
		}
		if r.err != nil {
			return 0, r.err
		}
	}
	n := copy(p, r.buf[r.off:])
	r.off += n
	return n, nil
}

func (r *reader) readChunk() error {
	bad := func(format string, args ...any) error {
		err := rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s, chunk %d of %d: "+format,
			append([]any{r.meta.ID, r.next, r.chunks}, args...)...)
		r.store.markBad(r.meta.ID, err)
		return err
	}
	if r.next == r.chunks {
		if r.sent != r.meta.Size {
			return bad("%d bytes in all, want %d", r.sent, r.meta.Size)
		}
		if _, err := r.br.ReadByte(); err != io.EOF {
			return bad("bytes follow the last chunk")
		}
		return io.EOF
	}
	var h [chunkHead]byte
	if _, err := io.ReadFull(r.br, h[:]); err != nil {
		return bad("read header: %w", err)
	}
	n := binary.LittleEndian.Uint32(h[:])
	if n == 0 || n > chunkBytes {
		return bad("length %d, want 1 to %d", n, chunkBytes)
	}
	if r.buf == nil {
		r.buf = make([]byte, chunkBytes)
	}
	r.buf, r.off = r.buf[:n], int(n) // Read returns nothing of it before the check
	if _, err := io.ReadFull(r.br, r.buf); err != nil {
		return bad("read: %w", err)
	}
	if got, want := chunkCRC(r.meta.Index, r.meta.Term, r.next, r.buf), binary.LittleEndian.Uint32(h[4:]); got != want {
		return bad("checksum is %08x, want %08x", got, want)
	}
	r.off = 0
	r.next++
	r.sent += int64(n)
	return nil
}

func (r *reader) Close() error { return r.f.Close() }

var errSinkClosed = errors.New("snapshot sink is closed, or its group is stopping")

// MetaOf returns the meta of the snapshot that rc reads. Raft wraps the reader that it got from Open, to count bytes.
func MetaOf(rc io.ReadCloser) (*raft.SnapshotMeta, error) {
	if r := unwrap(rc); r != nil {
		return &r.meta, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeInternal, "restore from a %T, want a snapshot of our store", rc)
}

// FullOf returns how many bytes of state the snapshot has that r reads when its references to files are replaced by
// what they refer to; 0 if it has none, or is not of our store.
func FullOf(r io.Reader) int64 {
	if r := unwrap(r); r != nil {
		return r.full
	}
	return 0
}

func unwrap(rc io.Reader) *reader {
	for {
		switch r := rc.(type) {
		case *reader:
			return r
		case raft.ReadCloserWrapper:
			rc = r.WrappedReadCloser()
		default:
			return nil
		}
	}
}
