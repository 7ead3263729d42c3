package raftstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotWatch is the snapshot store that raft uses. A leader that cannot read its snapshots keeps its followers from
// an election, but never repairs the follower that needs one (hashicorp/raft #522). So failures that persist stop the
// group.
//
// A single damaged snapshot is no reason to stop: the supervisor takes a new one. A snapshot that was written or read
// completely ends the failure.
type snapshotWatch struct {
	*snapshotStore
	limit time.Duration
	want  func()                   // requests a new snapshot
	took  func(*raft.SnapshotMeta) // called when a snapshot is on disk: taken here, or sent by the leader

	mu          sync.Mutex
	first, last time.Time // failures without a success, or a pause longer than limit/2, in between
	err         error
}

// errNoSnapshot is the failure for an empty list: a running raft lists snapshots only to send one. At a start the list
// may be empty; the caller then calls succeeded.
var errNoSnapshot = errors.New("there is no good snapshot")

func (w *snapshotWatch) List() ([]*raft.SnapshotMeta, error) {
	list, err := w.snapshotStore.List()
	if err == nil && len(list) == 0 {
		w.failed(errNoSnapshot)
	} else if err != nil {
		w.failed(err)
	}
	return list, err
}

func (w *snapshotWatch) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := w.snapshotStore.Open(id)
	if err != nil {
		w.failed(err)
		return nil, nil, err
	}
	return m, &watchedReader{r, w}, nil
}

func (w *snapshotWatch) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	k, err := w.snapshotStore.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return &watchedSink{k.(*snapshotSink), w}, nil
}

func (w *snapshotWatch) failed(err error) {
	w.want()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.first.IsZero() || now.Sub(w.last) > w.limit/2 {
		w.first = now
	}
	w.last, w.err = now, err
}

func (w *snapshotWatch) succeeded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = time.Time{}
}

// lastFailure returns when a snapshot could last not be read.
func (w *snapshotWatch) lastFailure() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// check returns why the group must stop, or nil. The supervisor does not call it while a new snapshot is taken.
func (w *snapshotWatch) check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first.IsZero() || w.last.Sub(w.first) < w.limit {
		return nil
	}
	return fmt.Errorf("the snapshots in %s cannot be read, and a follower that needs one would wait for ever: failing for %v, last: %w",
		w.dir, w.last.Sub(w.first).Round(time.Millisecond), w.err)
}

// watchedReader reports whether a snapshot was read completely.
type watchedReader struct {
	io.ReadCloser
	watch *snapshotWatch
}

var _ raft.ReadCloserWrapper = (*watchedReader)(nil)

func (r *watchedReader) WrappedReadCloser() io.ReadCloser { return r.ReadCloser }

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		r.watch.succeeded()
	case err != nil:
		r.watch.failed(err)
	}
	return n, err
}

type watchedSink struct {
	*snapshotSink
	watch *snapshotWatch
}

func (k *watchedSink) Close() error {
	err := k.snapshotSink.Close()
	if err == nil {
		k.watch.succeeded()
		k.watch.took(&k.meta.Raft)
	}
	return err
}
