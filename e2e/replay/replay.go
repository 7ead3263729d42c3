package replay

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	"github.com/rowraft/rowraft/e2e/check"
	"github.com/rowraft/rowraft/e2e/cluster"
	"github.com/rowraft/rowraft/e2e/history"
	"github.com/rowraft/rowraft/e2e/reference"
	"github.com/rowraft/rowraft/e2e/verdict"
	"github.com/rowraft/rowraft/internal/vfs"
	"github.com/rowraft/rowraft/raftstore/offline"
)

// Options are the logs and the other records of the run.
type Options struct {
	Servers []Server
	Shards  int               // number of shards in the cluster; the slots are divided evenly
	Slots   rowraft.SlotCount // number of slots in the cluster; 0: rowraft.DefaultSlots
	// Digests are the digests that replicas reported, each for an applied index.
	Digests []check.DigestAt
	// Ops are the operations of a load (package load): the counters must agree with them. Empty: the rows
	// are not checked.
	Ops []history.Op
}

// Server is a stopped server.
type Server struct {
	Name string
	Disk vfs.FS
	Dir  string // its data directory
}

// ErrNoData reports that a run has left no data to replay.
var ErrNoData = errors.New("no data directories of servers")

// OfRun checks the data that a run of a load has left below dir: data directories in dir or in its
// directory servers. It returns ErrNoData if there are none.
func OfRun(dir string, shards int, slots rowraft.SlotCount, ops []history.Op,
	seen cluster.Sights) (verdict.Verdict, error) {
	servers, err := findServers(dir)
	if err != nil {
		return verdict.Verdict{}, err
	}
	return Judge(Options{Servers: servers, Shards: shards, Slots: slots, Digests: seen.Digests, Ops: ops})
}

// Judge is Check, with the report in the form of a checker's verdict.
func Judge(o Options) (verdict.Verdict, error) {
	r, err := Check(o)
	if err != nil {
		return verdict.Verdict{}, err
	}
	return r.verdict(), nil
}

func findServers(dir string) ([]Server, error) {
	var out []Server
	for _, pattern := range []string{"*", filepath.Join("servers", "*")} {
		found, err := filepath.Glob(filepath.Join(dir, pattern, "raft", "registry"))
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			data := filepath.Dir(filepath.Dir(f))
			out = append(out, Server{filepath.Base(data), vfs.OS, data})
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w in %s", ErrNoData, dir)
	}
	return out, nil
}

// Report is the extent of a check and its findings.
type Report struct {
	Replicas  int
	Entries   int // replayed
	Snapshots int // snapshots compared with the replayed state, or with each other
	Digests   int // digests compared
	Rows      uint64
	Sessions  int
	Summed    int // pushes that were applied as part of a sum
	Problems  []string
}

// verdict returns the report in the form of a checker's verdict.
func (r *Report) verdict() verdict.Verdict {
	v := verdict.Verdict{Checker: "replay", Wrong: r.Problems, Looked: fmt.Sprintf(
		"%d entries of %d replicas' logs through two machines: %d snapshots, %d digests, %d rows, %d sessions; "+
			"%d pushes were summed", r.Entries, r.Replicas, r.Snapshots, r.Digests, r.Rows, r.Sessions, r.Summed)}
	if r.Entries == 0 && len(r.Problems) == 0 {
		v.Wrong = append(v.Wrong, "nothing was checked: no log has a committed entry")
	}
	return v
}

// Check makes all checks. An error means that it could not; its findings are in the report.
func Check(o Options) (*Report, error) {
	var stores []*offline.Store
	defer func() {
		for _, s := range stores {
			s.Close()
		}
	}()
	for _, s := range o.Servers {
		store, err := offline.Open(s.Disk, filepath.Join(s.Dir, "raft"))
		if err != nil {
			return nil, fmt.Errorf("logs of server %s: %w", s.Name, err)
		}
		stores = append(stores, store)
	}
	r := &Report{}
	count := cmp.Or(o.Slots, rowraft.DefaultSlots)
	slots := clustermap.EvenSlots(o.Shards, count)
	last := make([]*reference.Machine, o.Shards)
	for shard := range o.Shards {
		c := &shardCheck{report: r, shard: rowraft.ShardID(shard), slotCount: count,
			digests: map[rowraft.Index][]check.DigestAt{}}
		for s, owner := range slots {
			if int(owner) == shard {
				c.slots = append(c.slots, rowraft.Slot(s))
			}
		}
		for _, d := range o.Digests {
			if d.Shard == shard {
				c.digests[rowraft.Index(d.Index)] = append(c.digests[rowraft.Index(d.Index)], d)
				c.know(rowraft.Index(d.Index), "replica "+d.Replica+" has applied it")
			}
		}
		for _, op := range o.Ops {
			c.know(rowraft.Index(op.Index[shard]), fmt.Sprintf("client %d was told of it", op.Client))
		}
		if err := c.open(o.Servers, stores); err != nil {
			return nil, err
		}
		if c.agree() {
			last[shard] = c.replay()
		}
	}
	if len(o.Ops) > 0 && !slices.Contains(last, nil) {
		r.compareCounts(o.Ops, last)
	}
	return r, nil
}

// shownProblems limits the reported problems of one kind for each shard.
const shownProblems = 5

func (c *shardCheck) wrong(format string, args ...any) {
	c.report.Problems = append(c.report.Problems, fmt.Sprintf("shard %d: ", c.shard)+fmt.Sprintf(format, args...))
}
