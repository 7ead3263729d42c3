package raftstore

import (
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/rowraft/rowraft/internal/histogram"
)

// StageTimes are histograms of the stages of proposals, in the order in which an entry passes them. Groups may share
// one.
type StageTimes struct {
	// Log is the time from Propose until this server, the leader, has the entry on its disk.
	Log histogram.Durations
	// Replicate is the time from there until Apply begins: a majority has the entry, and the entries before it are
	// applied.
	Replicate histogram.Durations
	// Apply is the time of Apply.
	Apply histogram.Durations
}

// stageClock records when recent entries of a group reach their stages. It is a ring by index: an entry whose place was
// taken by a later one is not counted.
type stageClock struct {
	into *StageTimes
	ring []stageTimes
}

// stageTimes are moments of one entry, Unix ns. The goroutines that set them follow each other: raft stores an entry,
// applies it, and resolves its future.
type stageTimes struct{ index, stored, applying, applied atomic.Int64 }

// newStageClock returns the clock of a group; nil if nothing is to be counted.
func newStageClock(into *StageTimes) *stageClock {
	if into == nil {
		return nil
	}
	return &stageClock{into: into, ring: make([]stageTimes, 64)}
}

func (c *stageClock) at(index uint64) *stageTimes { return &c.ring[index%uint64(len(c.ring))] }

// stored records that entries are on the disk.
func (c *stageClock) stored(logs []*raft.Log) {
	if c == nil {
		return
	}
	now := time.Now().UnixNano()
	for _, l := range logs {
		t := c.at(l.Index)
		t.applying.Store(0)
		t.applied.Store(0)
		t.stored.Store(now)
		t.index.Store(int64(l.Index))
	}
}

// applying and applied record the begin and the end of Apply.
func (c *stageClock) applying(index uint64) {
	if c == nil {
		return
	}
	if t := c.at(index); t.index.Load() == int64(index) {
		t.applying.Store(time.Now().UnixNano())
	}
}

func (c *stageClock) applied(index uint64) {
	if c == nil {
		return
	}
	if t := c.at(index); t.index.Load() == int64(index) {
		t.applied.Store(time.Now().UnixNano())
	}
}

// count adds the stages of an entry that this replica proposed at the moment proposed.
func (c *stageClock) count(index uint64, proposed time.Time) {
	if c == nil {
		return
	}
	t := c.at(index)
	stored, applying, applied := t.stored.Load(), t.applying.Load(), t.applied.Load()
	if t.index.Load() != int64(index) || applying == 0 || applied == 0 {
		return
	}
	c.into.Log.Observe(time.Duration(stored - proposed.UnixNano()))
	c.into.Replicate.Observe(time.Duration(applying - stored))
	c.into.Apply.Observe(time.Duration(applied - applying))
}
