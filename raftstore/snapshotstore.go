package raftstore

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
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// The files of a snapshot; docs/formats/snapshot-store.md is the authority.
const (
	snapDataMagic  = "rowraftD"
	snapMetaMagic  = "rowraftM"
	snapVersion    = 1 // of both files, which have the same
	snapChunkBytes = 256 << 10
	snapChunkHead  = 8
	snapKeep       = 2
	snapMaxMeta    = 1 << 20
)

// snapshotStore keeps the snapshots of one group, a directory each. It replaces
// raft.FileSnapshotStore, which reads a whole snapshot for its checksum before
// the first byte is used; here each chunk carries its own. Safe for concurrent
// use: a snapshot may be received while another is sent and a third is written.
type snapshotStore struct {
	disk vfs.FS
	dir  string
	// owner is the replica whose snapshots these are, as their metas state it; "": they
	// may be of any.
	owner string
	log   *slog.Logger
	// corrupt is told when a snapshot turned out bad while it was read.
	corrupt func(id string, err error)

	// stopping makes sinks fail, so that raft can end while one is written.
	stopping atomic.Bool

	// names is held for reading while the directory is listed and its metas are read,
	// and for writing while names go away: one that goes in between looks corrupt.
	names sync.RWMutex

	mu  sync.Mutex
	bad map[string]bool // IDs that failed a check since the start
}

var _ raft.SnapshotStore = (*snapshotStore)(nil)

// openSnapshotStore opens dir, creating it, and removes what a crash left behind.
func openSnapshotStore(disk vfs.FS, dir, owner string, log *slog.Logger, corrupt func(string, error)) (*snapshotStore, error) {
	if err := vfs.MkdirAll(disk, dir); err != nil {
		return nil, err
	}
	// A process may have died right after it renamed a snapshot; the log may be cut
	// because of it.
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
	return &snapshotStore{disk: disk, dir: dir, owner: owner, log: log, corrupt: corrupt, bad: map[string]bool{}}, nil
}

// snapMeta is the JSON in a meta file.
type snapMeta struct {
	Raft   raft.SnapshotMeta `json:"raft"`
	Chunks int64             `json:"chunks"`
	Owner  string            `json:"owner"`
}

// List returns the good snapshots, newest first. Errors: CodeIdentity if one is of
// another owner; CodeVersionTooNew; those of the disk.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
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
		m, err := readSnapMeta(s.disk, filepath.Join(s.dir, e.Name()))
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
			return nil, rowraft.Errorf(rowraft.CodeIdentity, "snapshot %s in %s belongs to %s; it is opened as that of %s: the files of two replicas were exchanged, or copied; put each back in its place, or remove the replica from its group and add a new one",
				e.Name(), s.dir, cmp.Or(m.Owner, "no replica"), s.owner)
		}
		out = append(out, &m.Raft)
	}
	slices.SortFunc(out, func(a, b *raft.SnapshotMeta) int {
		return -compareSnap(a, b)
	})
	return out, nil
}

func compareSnap(a, b *raft.SnapshotMeta) int {
	switch {
	case a.Index != b.Index:
		return cmpUint(a.Index, b.Index)
	case a.Term != b.Term:
		return cmpUint(a.Term, b.Term)
	}
	return strings.Compare(a.ID, b.ID)
}

func cmpUint(a, b uint64) int {
	if a < b {
		return -1
	}
	return 1
}

func (s *snapshotStore) isBad(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bad[id]
}

func (s *snapshotStore) markBad(id string, err error) {
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
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	dir := filepath.Join(s.dir, id)
	m, err := readSnapMeta(s.disk, dir)
	if err != nil {
		s.markBad(id, err)
		return nil, nil, err
	}
	f, err := s.disk.OpenFile(filepath.Join(dir, "data"), os.O_RDONLY)
	if err != nil {
		s.markBad(id, err)
		return nil, nil, err
	}
	r := &snapshotReader{store: s, meta: m.Raft, chunks: m.Chunks, f: f, br: bufio.NewReaderSize(f, 64<<10)}
	if err := r.readHeader(); err != nil {
		f.Close()
		s.markBad(id, err)
		return nil, nil, err
	}
	return &r.meta, r, nil
}

// reap removes all but the newest snapKeep good snapshots, and the bad ones that
// are older than those.
func (s *snapshotStore) reap() error {
	list, err := s.List()
	if err != nil {
		return err
	}
	if len(list) <= snapKeep {
		return nil
	}
	var old []string
	for _, m := range list[snapKeep:] {
		old = append(old, m.ID)
	}
	s.mu.Lock()
	for id := range s.bad {
		if id < list[snapKeep-1].ID { // IDs sort by index
			old = append(old, id)
			delete(s.bad, id)
		}
	}
	s.mu.Unlock()
	return s.remove(old)
}

// remove takes the names of snapshots away, durably, before their files: a crash
// leaves no half of one under its name.
func (s *snapshotStore) remove(ids []string) error {
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

// hide gives snapshots names that List leaves out.
func (s *snapshotStore) hide(ids []string) error {
	s.names.Lock()
	defer s.names.Unlock()
	for _, id := range ids {
		if err := s.disk.Rename(filepath.Join(s.dir, id), filepath.Join(s.dir, id+".tmp")); err != nil {
			return err
		}
	}
	return nil
}

func readSnapMeta(disk vfs.FS, dir string) (*snapMeta, error) {
	path := filepath.Join(dir, "meta")
	f, err := disk.OpenFile(path, os.O_RDONLY)
	if err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "open snapshot meta: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, snapMaxMeta+1))
	if err != nil {
		return nil, err
	}
	body, err := frame.Open(b, snapMetaMagic, snapVersion)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	var m snapMeta
	if err := json.Unmarshal(body, &m); err != nil {
		return nil, rowraft.Errorf(rowraft.CodeCorrupt, "%s: %w", path, err)
	}
	return &m, nil
}

// chunkCRC covers the place of a chunk, so that swapped or foreign chunks show.
func chunkCRC(index, term uint64, chunk int64, data []byte) uint32 {
	var place [24]byte
	binary.LittleEndian.PutUint64(place[0:], index)
	binary.LittleEndian.PutUint64(place[8:], term)
	binary.LittleEndian.PutUint64(place[16:], uint64(chunk))
	return crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, data)
}

// snapshotReader yields the payload of a snapshot, chunk by checked chunk. Used
// by one goroutine.
type snapshotReader struct {
	store  *snapshotStore
	meta   raft.SnapshotMeta
	chunks int64

	f    vfs.File
	br   *bufio.Reader
	buf  []byte // chunk in memory
	off  int    // what was passed on of buf
	next int64  // chunk to read
	sent int64  // payload bytes in chunks read so far
	err  error
}

func (r *snapshotReader) readHeader() error {
	var h [frame.HeadBytes]byte
	if _, err := io.ReadFull(r.br, h[:]); err != nil {
		return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s: read data header: %w", r.meta.ID, err)
	}
	if want := snapDataHeader(r.meta.Index, r.meta.Term); h != want {
		return rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s: data header is %x, want %x", r.meta.ID, h, want)
	}
	return nil
}

// snapDataHeader is what the data file of a snapshot begins with. All of it follows
// from the meta file.
func snapDataHeader(index, term uint64) (h [frame.HeadBytes]byte) {
	copy(h[:], snapDataMagic)
	binary.LittleEndian.PutUint16(h[8:], snapVersion)
	var place [16]byte
	binary.LittleEndian.PutUint64(place[0:], index)
	binary.LittleEndian.PutUint64(place[8:], term)
	binary.LittleEndian.PutUint32(h[12:], crc32.Update(crc32.Checksum(place[:], castagnoli), castagnoli, h[:12]))
	return h
}

func (r *snapshotReader) Read(p []byte) (int, error) {
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

func (r *snapshotReader) readChunk() error {
	bad := func(format string, args ...any) error {
		err := rowraft.Errorf(rowraft.CodeCorrupt, "snapshot %s, chunk %d of %d: "+format, append([]any{r.meta.ID, r.next, r.chunks}, args...)...)
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
	var h [snapChunkHead]byte
	if _, err := io.ReadFull(r.br, h[:]); err != nil {
		return bad("read header: %w", err)
	}
	n := binary.LittleEndian.Uint32(h[:])
	if n == 0 || n > snapChunkBytes {
		return bad("length %d, want 1 to %d", n, snapChunkBytes)
	}
	if r.buf == nil {
		r.buf = make([]byte, snapChunkBytes)
	}
	r.buf, r.off = r.buf[:n], int(n) // nothing to pass on before the check
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

func (r *snapshotReader) Close() error { return r.f.Close() }

var errSinkClosed = errors.New("snapshot sink is closed, or its group is stopping")
