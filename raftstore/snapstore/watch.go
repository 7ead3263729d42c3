package snapstore

import (
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// Watch is the snapshot store that raft uses. A leader that cannot read its snapshots prevents an election by its
// heartbeats, but never repairs the follower that needs a snapshot (hashicorp/raft #522). So Check fails when the
// failures persist, and the group stops.
//
// A single damaged snapshot is no reason to stop, because the group takes a new one. A snapshot that was written or
// read completely ends the failure.
type Watch struct {
	*Store
	limit time.Duration
	want  func()                   // requests a new snapshot
	took  func(*raft.SnapshotMeta) // called when a snapshot is on disk: taken here, or sent by the leader

	mu sync.Mutex
	// first and last are the times of the first and last failure of a series. A success ends a series, and so does a
	// pause longer than limit/2. first is zero without a series.
	first, last time.Time
	err         error // of the last failure
}

// NewWatch returns a watch of store. want is called at each failure to read a snapshot, took when one is on disk: taken
// here, or sent by the leader. Check fails after limit without a success.
func NewWatch(store *Store, limit time.Duration, want func(), took func(*raft.SnapshotMeta)) *Watch {
	return &Watch{Store: store, limit: limit, want: want, took: took}
}

// errNoSnapshot is the failure for an empty list: a running raft lists snapshots only to send one. At a start the list
// may be empty; then the caller calls Succeeded.
var errNoSnapshot = errors.New("there is no good snapshot")

func (w *Watch) List() ([]*raft.SnapshotMeta, error) {
	list, err := w.Store.List()
	if err == nil && len(list) == 0 {
		w.failed(errNoSnapshot)
	} else if err != nil {
		w.failed(err)
	}
	return list, err
}

func (w *Watch) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	m, r, err := w.Store.Open(id)
	if err != nil {
		w.failed(err)
		return nil, nil, err
	}
	return m, &watchedReader{r, w}, nil
}

func (w *Watch) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	k, err := w.Store.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return &watchedSink{k.(*sink), w}, nil
}

func (w *Watch) failed(err error) {
	w.want()
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if w.first.IsZero() || now.Sub(w.last) > w.limit/2 {
		w.first = now
	}
	w.last, w.err = now, err
}

// Succeeded ends a series of failures.
func (w *Watch) Succeeded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.first = time.Time{}
}

// LastFailure returns the time of the last failure to read a snapshot; zero without one.
func (w *Watch) LastFailure() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// Check returns why the group must stop, or nil. The caller does not call it while it takes a new snapshot.
func (w *Watch) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.first.IsZero() || w.last.Sub(w.first) < w.limit {
		return nil
	}
	return fmt.Errorf(
		"the snapshots in %s cannot be read, and a follower that needs one would wait forever: failing for %v, last: %w",
		w.dir, w.last.Sub(w.first).Round(time.Millisecond), w.err)
}

// watchedReader reports whether a snapshot was read completely.
type watchedReader struct {
	io.ReadCloser
	watch *Watch
}

var _ raft.ReadCloserWrapper = (*watchedReader)(nil)

func (r *watchedReader) WrappedReadCloser() io.ReadCloser { return r.ReadCloser }

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		r.watch.Succeeded()
	case err != nil:
		r.watch.failed(err)
	}
	return n, err
}

type watchedSink struct {
	*sink
	watch *Watch
}

func (k *watchedSink) Close() error {
	err := k.sink.Close()
	if err == nil {
		k.watch.Succeeded()
		k.watch.took(&k.meta.Raft)
	}
	return err
}
