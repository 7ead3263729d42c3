package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rowraft/rowraft"
	"github.com/rowraft/rowraft/clustermap"
	rowraftv1 "github.com/rowraft/rowraft/proto/rowraft/v1"
	"github.com/rowraft/rowraft/scheduler/diagnosis"
	"github.com/rowraft/rowraft/wire"
)

// A cluster is upgraded server by server, and a replica that cannot apply an entry stops. So the cluster logs only
// entries that every server supports. Each server sends the newest format version that it supports, with its
// registration and its heartbeats. When the scheduler has the version of all servers, it logs the lowest one. This
// version only rises. From then on the cluster refuses a server that supports less.

// versionsWait is how long a new leader waits for the versions of silent servers
// before it makes the shards of a new cluster without them.
const versionsWait = 5 * time.Second

// FormatVersion returns the newest version that may be in a log of m.
func FormatVersion(m *clustermap.Map) rowraft.FormatVersion {
	if m == nil {
		return wire.FirstVersion
	}
	return max(m.FormatVersion, wire.FirstVersion)
}

// announced converts the version that a server sent. This leader logs nothing that it
// does not understand itself, so a higher one counts as its own.
func announced(v uint32) rowraft.FormatVersion {
	return rowraft.FormatVersion(min(max(v, uint32(wire.FirstVersion)), uint32(wire.NewestVersion())))
}

// hear stores the version that a server understands, or refuses a server that
// understands less than the cluster uses.
func (g *group) hear(node rowraft.NodeID, label string, v rowraft.FormatVersion) error {
	if at := FormatVersion(g.view.Map()); v < at {
		return rowraft.Errorf(rowraft.CodeInvalidArgument,
			"server %s understands formats up to version %d, the cluster uses version %d: upgrade its binary", label, v, at)
	}
	g.soft.mu.Lock()
	defer g.soft.mu.Unlock()
	g.soft.versions[node] = v
	return nil
}

// versionOf returns the version that a server has sent to this leader. This server's own
// is known before it has sent it.
func (g *group) versionOf(node rowraft.NodeID) (rowraft.FormatVersion, bool) {
	g.soft.mu.Lock()
	v, known := g.soft.versions[node]
	g.soft.mu.Unlock()
	if !known && node == g.opts.Self.ID {
		return cmp.Or(g.opts.Announce, wire.NewestVersion()), true
	}
	return v, known
}

// mayLog refuses what needs a higher version than the cluster uses. The refusal is
// final (VersionTooNew) only if a server is known to understand less.
func (g *group) mayLog(version rowraft.FormatVersion) error {
	m := g.view.Map()
	at := FormatVersion(m)
	if version <= at {
		return nil
	}
	if m == nil {
		return rowraft.Errorf(rowraft.CodeStarting, "this needs formats of version %d, and the scheduler has no map yet",
			version)
	}
	low, oldest, known := g.lowest(m)
	if !known || low >= version { // the version is about to rise
		return rowraft.Errorf(rowraft.CodeStarting, "this needs formats of version %d, the cluster is at %d: %s", version, at,
			cmp.Or(oldest, "it is about to rise"))
	}
	return rowraft.Errorf(rowraft.CodeVersionTooNew, "this needs formats of version %d, the cluster is at %d: %s", version,
		at, oldest)
}

// lowest returns the version that all servers of m understand, and a message that names
// the oldest server; known is false while a server has not sent its version to this leader.
//
// A server counts if it has a replica, of a shard or of the scheduler. One that is away
// and has none does not: it must register before it gets any.
func (g *group) lowest(m *clustermap.Map) (low rowraft.FormatVersion, oldest string, known bool) {
	low, known = wire.NewestVersion(), true
	note := func(label string, v rowraft.FormatVersion, ok bool) {
		switch {
		case !ok:
			known = false
			oldest = cmp.Or(oldest, fmt.Sprintf("server %s has not sent the version that it understands", label))
		case v < low:
			low = v
			oldest = fmt.Sprintf("server %s understands formats up to version %d: upgrade it", label, v)
		}
	}
	seated := g.seated()
	for _, id := range seated {
		if _, registered := m.Node(id); !registered {
			v, ok := g.versionOf(id)
			note(g.seatLabel(id), v, ok)
		}
	}
	for _, n := range m.Nodes {
		v, ok := g.versionOf(n.ID)
		if !ok && !slices.Contains(seated, n.ID) && len(m.ShardsOn(n.ID)) == 0 {
			continue
		}
		note(diagnosis.NodeLabel(&rowraftv1.Node{Id: string(n.ID), Name: n.Name}), v, ok)
	}
	return low, oldest, known
}

// raiseVersion logs the version that all servers understand, if the cluster uses a lower
// one. It reports whether all servers have sent theirs.
func (g *group) raiseVersion(ctx context.Context, m *clustermap.Map) (known bool, err error) {
	low, oldest, known := g.lowest(m)
	if low == wire.NewestVersion() { // a silent server is not known to be old
		oldest = ""
	}
	g.soft.mu.Lock()
	g.soft.oldest = oldest
	g.soft.mu.Unlock()
	if !known || low <= FormatVersion(m) {
		return known, nil
	}
	_, err = g.propose(ctx,
		&rowraftv1.MetaCommand{Command: &rowraftv1.MetaCommand_RaiseVersion{
			RaiseVersion: &rowraftv1.MetaRaiseVersion{FormatVersion: uint32(low)}}})
	if err != nil {
		return known, fmt.Errorf("raise the format version: %w", err)
	}
	g.logger.Info("all servers understand a newer format version", "format_version", low)
	return known, nil
}

// awaitVersions reports whether the shards of a new cluster wait for the versions of its
// servers, so that the first calls of clients are not refused for a version that is about to rise.
func (g *group) awaitVersions(ctx context.Context, m *clustermap.Map) (wait bool, err error) {
	known, err := g.raiseVersion(ctx, m)
	g.soft.mu.Lock()
	defer g.soft.mu.Unlock()
	return !known && time.Since(g.soft.since) < versionsWait, err
}
