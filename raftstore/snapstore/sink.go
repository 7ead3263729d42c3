package snapstore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/frame"
)

// sequence makes the names of snapshots taken at one index distinct.
var sequence atomic.Uint64

// Create begins a snapshot. Until its sink is closed, the name of its directory ends in ".tmp", and List ignores it.
func (s *Store) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if version != 1 {
		return nil, fmt.Errorf("snapshot version %d, want 1", version)
	}
	var id string
	for {
		id = fmt.Sprintf("%020d-%010d-%04d", index, term, sequence.Add(1))
		if _, err := s.disk.Stat(filepath.Join(s.dir, id)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return nil, err
		}
	}
	tmp := filepath.Join(s.dir, id+".tmp")
	if err := s.disk.Mkdir(tmp); err != nil {
		return nil, err
	}
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

// sink writes one snapshot. Used by one goroutine. A second Close or Cancel does nothing.
type sink struct {
	store *Store
	tmp   string
	f     vfs.File
	out   *vfs.Stream // to f
	buf   []byte      // chunk header, then payload
	meta  meta
	done  bool
	err   error // first failure; Close returns it again
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
