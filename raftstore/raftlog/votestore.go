package raftlog

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"sync"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/internal/vfs"
)

// The file of a metaStore; docs/formats/log-meta.md is the authority.
const (
	metaName    = "META"
	metaTemp    = "META.new"
	metaMagic   = "rowraftL"
	metaVersion = 1
	metaCopies  = 4 // two slots of two copies
	metaMinCopy = 4 << 10
	metaMaxCopy = 16 << 20
)

// metaStore stores raft's term and vote, and the number of the log's newest segment. A change is one write and one
// sync. It goes to the slot that does not hold the newest state, in two copies: a torn write leaves the other slot, and
// a damaged sector leaves the other copy. Safe for concurrent use.
//
// After a failed write the content of the disk is unknown: every later call returns that error.
type metaStore struct {
	disk  vfs.FS
	owner Owner
	log   *slog.Logger

	mu struct {
		sync.Mutex
		dir      string
		file     vfs.File // nil until Load and after Close
		copySize int
		slot     int // slot that holds state
		state    metaState
		err      error // first failure to write
	}
}

func newMetaStore(disk vfs.FS, owner Owner, log *slog.Logger) *metaStore {
	return &metaStore{disk: disk, owner: owner, log: log}
}

// Load opens or creates the file in dir and returns the state that the last process left. When it returns, the mark of
// a clean stop is removed from the disk.
//
// Errors: CodeCorrupt, CodeVersionTooNew; CodeIdentity if the file has another owner.
func (s *metaStore) Load(dir string) (last metaState, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.file != nil {
		return metaState{}, rowraft.Errorf(rowraft.CodeInternal, "log metadata of %s is loaded twice", dir)
	}
	s.mu.dir = dir
	name := filepath.Join(dir, metaName)
	raw, err := vfs.ReadFile(s.disk, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.mu.state = metaState{generation: 1, owner: s.owner}
		return s.mu.state, s.replaceLocked(metaMinCopy)
	case err != nil:
		return metaState{}, err
	}
	if last, err = s.takeLocked(raw); err != nil {
		return last, fmt.Errorf("%s: %w", name, err)
	}
	return last, nil
}

// takeLocked uses the newest state in raw, the file's content, and makes it durable. raw may be only in memory, and a
// sync of the file may have no effect: the process that wrote it may have died before its sync, or its sync failed. So
// takeLocked writes the state into a new file. It must not overwrite a slot, because it is unknown which of the two the
// disk has.
func (s *metaStore) takeLocked(raw []byte) (last metaState, err error) {
	size := len(raw) / metaCopies
	if size < metaMinCopy || size > metaMaxCopy || size%metaMinCopy != 0 || len(raw)%metaCopies != 0 {
		return last, rowraft.Errorf(rowraft.CodeCorrupt, "%d bytes long: want 4 copies of a multiple of %d", len(raw),
			metaMinCopy)
	}
	newest, whole, err := newestMeta(raw, size)
	if err != nil {
		return last, err
	}
	last = whole[newest]
	if err := s.owner.check("it", last.owner); err != nil {
		return last, err
	}
	s.mu.state = last
	s.mu.state.clean = false
	if !s.mu.state.intact {
		s.log.Warn("a copy of the log metadata was torn or damaged, and is replaced", "dir", s.mu.dir, "generation",
			s.mu.state.generation)
	}
	return last, s.replaceLocked(size)
}

// newestMeta decodes the slots of a file whose copies have size bytes, and returns the slot with the newest state.
func newestMeta(raw []byte, size int) (newest int, slots [2]metaState, err error) {
	var first error
	for c := range metaCopies {
		slot := c / 2
		got, err := decodeMeta(raw[c*size : (c+1)*size])
		switch {
		case rowraft.CodeOf(err) == rowraft.CodeVersionTooNew:
			return 0, slots, err
		case err != nil:
			first = cmp.Or(first, err)
			continue
		case c%2 == 1:
			got.intact = slots[slot].generation == got.generation
		}
		if got.generation >= slots[slot].generation {
			slots[slot] = got
		} else {
			slots[slot].intact = false
		}
	}
	if slots[1].generation > slots[0].generation {
		newest = 1
	}
	if slots[newest].generation == 0 {
		return 0, slots, rowraft.Errorf(rowraft.CodeCorrupt, "no copy of the log metadata is whole: %w", first)
	}
	return newest, slots, nil
}

// setNewest records the number of the newest segment. Without it a log that lost its newest segments would open as a
// shorter log.
func (s *metaStore) setNewest(number uint64) error {
	return s.change(func(m *metaState) bool {
		m.newest = number
		return true
	})
}

// noteCleanStop marks the state as the last one of a process whose writes all succeeded. Any later change removes the
// mark.
func (s *metaStore) noteCleanStop() error {
	return s.change(func(m *metaState) bool {
		m.clean = true
		return true
	})
}

// Set stores a value; nil removes it. It writes nothing if the value does not change.
func (s *metaStore) Set(key, value []byte) error {
	return s.change(func(m *metaState) bool {
		old, had := m.stable[string(key)]
		if had == (value != nil) && old == string(value) {
			return false
		}
		m.stable = maps.Clone(m.stable)
		if value == nil {
			delete(m.stable, string(key))
			return true
		}
		if m.stable == nil {
			m.stable = map[string]string{}
		}
		m.stable[string(key)] = string(value)
		return true
	})
}

// Get returns a copy of a value, nil if there is none.
func (s *metaStore) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usableLocked(); err != nil {
		return nil, err
	}
	v, ok := s.mu.state.stable[string(key)]
	if !ok {
		return nil, nil
	}
	return []byte(v), nil
}

// GetUint64 returns a number, 0 if there is none.
func (s *metaStore) GetUint64(key []byte) (uint64, error) {
	v, err := s.Get(key)
	if err != nil || v == nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, rowraft.Errorf(rowraft.CodeCorrupt, "log metadata: %s has %d bytes, want 8", key, len(v))
	}
	return binary.LittleEndian.Uint64(v), nil
}

// SetUint64 stores a number.
func (s *metaStore) SetUint64(key []byte, value uint64) error {
	return s.Set(key, binary.LittleEndian.AppendUint64(nil, value))
}

func (s *metaStore) usableLocked() error {
	if s.mu.err != nil {
		return s.mu.err
	}
	if s.mu.file == nil {
		return rowraft.Errorf(rowraft.CodeClosing, "log metadata of %s is closed", s.mu.dir)
	}
	return nil
}

// change applies edit to the state and makes the result durable, unless edit reports that nothing changed. edit must
// not change the map of the old state in place.
func (s *metaStore) change(edit func(*metaState) bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usableLocked(); err != nil {
		return err
	}
	next := s.mu.state
	next.clean = false
	if !edit(&next) {
		return nil
	}
	s.mu.state = next
	if err := s.writeLocked(s.mu.file); err != nil {
		s.mu.err = fmt.Errorf("write the log metadata of %s: %w", s.mu.dir, err)
		return s.mu.err
	}
	return nil
}

// writeLocked makes the state durable as a new generation.
func (s *metaStore) writeLocked(f vfs.File) error {
	s.mu.state.generation++
	frame := s.mu.state.encode()
	if len(frame) > s.mu.copySize {
		size := s.mu.copySize
		for size < len(frame) {
			size *= 2
		}
		return errors.Join(s.replaceLocked(size), f.Close())
	}
	both := make([]byte, s.mu.copySize+len(frame))
	copy(both, frame)
	copy(both[s.mu.copySize:], frame)
	slot := 1 - s.mu.slot
	if _, err := f.WriteAt(both, int64(slot*2*s.mu.copySize)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	s.mu.slot, s.mu.state.intact = slot, true
	return nil
}

// replaceLocked writes the state into a new file with copies of size bytes.
func (s *metaStore) replaceLocked(size int) error {
	if size > metaMaxCopy {
		return rowraft.Errorf(rowraft.CodeInternal, "the metadata of %s needs more than %d bytes, the limit", s.mu.dir,
			metaMaxCopy)
	}
	frame := s.mu.state.encode()
	raw := make([]byte, metaCopies*size)
	copy(raw, frame)
	copy(raw[size:], frame)
	name := filepath.Join(s.mu.dir, metaName)
	if err := vfs.ReplaceFile(s.disk, filepath.Join(s.mu.dir, metaTemp), name, raw); err != nil {
		return err
	}
	f, err := s.disk.OpenFile(name, os.O_RDWR)
	if err != nil {
		return err
	}
	s.mu.file, s.mu.copySize, s.mu.slot, s.mu.state.intact = f, size, 0, true
	return nil
}

// Close releases the file.
func (s *metaStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.file == nil {
		return nil
	}
	f := s.mu.file
	s.mu.file = nil
	return f.Close()
}
