package snapstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// Create begins a snapshot. Until its sink is closed, the name of its directory ends in ".tmp", and List ignores it.
func (s *Store) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("snapshot version %d, want 1", version)
	}
	id, err := s.newDir(index, term)
	if err != nil {
		return nil, err
	}
	tmp := filepath.Join(s.dir, id+".tmp")
	f, err := s.disk.OpenFile(filepath.Join(tmp, "data"), os.O_CREATE|os.O_EXCL|os.O_WRONLY)
	if err != nil {
		return nil, errors.Join(err, vfs.RemoveAll(s.disk, tmp))
	}
	k := &sink{
		store: s, tmp: tmp, f: f, out: vfs.NewStream(f), buf: make([]byte, chunkHead, chunkHead+chunkBytes),
		meta: meta{Owner: s.owner, Raft: raft.SnapshotMeta{
			Version: version, ID: id, Index: index, Term: term,
			Configuration: configuration, ConfigurationIndex: configurationIndex,
		}},
	}
	header := dataHeader(index, term)
	if _, err := k.out.Write(header[:]); err != nil {
		return nil, errors.Join(err, k.Cancel())
	}
	return k, nil
}

// newDir makes the directory of a new snapshot. Its name is above all others with the same index and term: of several
// snapshots at one index, the last one is the newest, also after a restart.
func (s *Store) newDir(index, term uint64) (id string, err error) {
	prefix := fmt.Sprintf("%020d-%010d-", index, term)
	for {
		entries, err := s.disk.ReadDir(s.dir)
		if err != nil {
			return "", err
		}
		last := uint64(0)
		for _, e := range entries {
			if n, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), ".tmp"), prefix); ok {
				i, _ := strconv.ParseUint(n, 10, 64)
				last = max(last, i)
			}
		}
		id = fmt.Sprintf("%s%04d", prefix, last+1)
		err = s.disk.Mkdir(filepath.Join(s.dir, id+".tmp"))
		if !errors.Is(err, fs.ErrExist) { // another Create may have made it
			return id, err
		}
	}
}

// sink writes one snapshot. Used by one goroutine. A second Close or Cancel does nothing.
type sink struct {
	store *Store
	tmp   string
	f     vfs.File
	out   *vfs.Stream // to f
	buf   []byte      // chunk header, then payload
	meta  meta
	done  bool
	named bool  // commit has renamed the directory
	err   error // first failure; Close returns it again
}

// SetFull notes how many bytes the state has without references to files; 0: it has no references.
func SetFull(s raft.SnapshotSink, bytes int64) error {
	k, err := sinkOf(s)
	if err == nil {
		k.meta.Full = bytes
	}
	return err
}

// Outcome reports what became of a sink that was closed or canceled: whether the snapshot has its name, and whether
// that is durable.
func Outcome(s raft.SnapshotSink) (named, durable bool) {
	k, err := sinkOf(s)
	if err != nil {
		return false, false
	}
	return k.named, k.named && k.err == nil
}

func sinkOf(s raft.SnapshotSink) (*sink, error) {
	switch s := s.(type) {
	case *sink:
		return s, nil
	case *watchedSink:
		return s.sink, nil
	}
	return nil, rowraft.Errorf(rowraft.CodeInternal, "a %T is not a sink of our store", s)
}

func (k *sink) ID() string { return k.meta.Raft.ID }

func (k *sink) Write(p []byte) (int, error) {
	if k.done || k.store.stopping.Load() {
		return 0, errSinkClosed
	}
	for rest := p; len(rest) > 0 && k.err == nil; {
		n := copy(k.buf[len(k.buf):cap(k.buf)], rest)
		k.buf = k.buf[:len(k.buf)+n]
		rest = rest[n:]
		if len(k.buf) == cap(k.buf) {
			k.err = k.flushChunk()
		}
	}
	if k.err != nil {
		return 0, k.err
	}
	return len(p), nil
}

func (k *sink) flushChunk() error {
	payload := k.buf[chunkHead:]
	if len(payload) == 0 {
		return nil
	}
	m := &k.meta
	binary.LittleEndian.PutUint32(k.buf, uint32(len(payload)))
	binary.LittleEndian.PutUint32(k.buf[4:], chunkCRC(m.Raft.Index, m.Raft.Term, m.Chunks, payload))
	if _, err := k.out.Write(k.buf); err != nil {
		return err
	}
	m.Chunks++
	m.Raft.Size += int64(len(payload))
	k.buf = k.buf[:chunkHead]
	return nil
}

// Close makes the snapshot durable and visible, in this order: data, meta, their directory, the rename of the
// directory.
func (k *sink) Close() error {
	if k.done {
		return k.err
	}
	err := k.err
	if err == nil {
		err = k.commit()
	}
	if err != nil {
		k.err = errors.Join(err, k.Cancel())
		return k.err
	}
	k.done = true
	if err := k.store.reap(); err != nil {
		k.store.log.Warn("old snapshots could not be removed", "dir", k.store.dir, "err", err)
	}
	return nil
}

func (k *sink) commit() error {
	if err := k.flushChunk(); err != nil {
		return err
	}
	if err := k.out.Finish(); err != nil {
		return err
	}
	if err := k.f.Sync(); err != nil {
		return err
	}
	if err := k.f.Close(); err != nil {
		return err
	}
	body, err := json.Marshal(&k.meta)
	if err != nil {
		return err
	}
	if err := vfs.WriteFile(k.store.disk, filepath.Join(k.tmp, "meta"), frame.Seal(metaMagic, version, body)); err != nil {
		return err
	}
	if err := k.store.disk.SyncDir(k.tmp); err != nil {
		return err
	}
	if err := k.store.disk.Rename(k.tmp, filepath.Join(k.store.dir, k.ID())); err != nil {
		return err
	}
	k.named = true
	return k.store.disk.SyncDir(k.store.dir)
}

// Cancel removes the unfinished snapshot.
func (k *sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	_ = k.out.Wait() // its error does not matter: the files are removed
	k.f.Close()
	return vfs.RemoveAll(k.store.disk, k.tmp)
}
